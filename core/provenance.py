"""Where a report comes from, in the same words in all: the program's, and those of agents and users that ask it.

It imports nothing else of the product, so the clients that write reports can import it as well."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

Origin = Mapping[str, Any]

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_PASSWORD_IN_URL: Final = re.compile(r"(://[^\s/@:]*):[^\s/@]+@")
_NAMED: Final = re.compile(r"(?:(.*)@)?(\d+)")


def made_by(program: str, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """Return which program is running, and how it was asked to; `hide` takes the secrets out of its command."""
    command = f"{program} {shlex.join(sys.argv[1:])}".rstrip()
    return {"command": hide(_PASSWORD_IN_URL.sub(r"\1:***@", command)), "commit": _commit()}


def provenance(
    made: Origin,
    model: str | None,
    model_digest: str | None,
    versions: list[str] | None,
    seeds: Mapping[str, int | None] | None = None,
) -> dict[str, Any]:
    """Return who made it (`made_by`), and what it is of.

    `versions`: the lowest and the highest that answered. `seeds`: those from which anything was drawn, by who drew; a
    None among them: whoever drew took one of its own."""
    told = {"model": model, "model_digest": model_digest, "versions": versions, "seeds": dict(seeds or {})}
    return {"command": made["command"], "commit": made["commit"], **told}


def lowest_and_highest(versions: Iterable[int | str]) -> list[str] | None:
    """Return both, as the API has them (`7`, `NAME@7`); None of none."""
    found = sorted({str(each) for each in versions}, key=_place)
    return [found[0], found[-1]] if found else None


def in_png(origin: Origin | None) -> dict[str, str]:
    """Return what a picture's file says of where it comes from: the text `onward` within the PNG."""
    return {"onward": json.dumps(origin)}


def _place(version: str) -> tuple[str, int]:
    found = _NAMED.fullmatch(version)
    return (version, 0) if found is None else (found[1] or "", int(found[2]))


def _commit() -> str | None:
    """Return the commit of the checkout that runs; None outside of one, as in an image."""
    try:
        asked = ["git", "-C", str(_CHECKOUT), "rev-parse", "--show-toplevel", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    top, _, commit = done.stdout.strip().partition("\n")
    return commit if done.returncode == 0 and Path(top) == _CHECKOUT else None  # else it lies within another's checkout
