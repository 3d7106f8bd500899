"""Where a report comes from: the program, its command and commit, the model and the versions.

It imports nothing else of the product, so that clients that write reports can import it, too."""

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
    """Return the running program's command and commit; `hide` takes secrets out of the command."""
    command = f"{program} {shlex.join(sys.argv[1:])}".rstrip()
    return {"command": hide(_PASSWORD_IN_URL.sub(r"\1:***@", command)), "commit": _commit()}


def provenance(
    made: Origin,
    model: str | None,
    model_digest: str | None,
    versions: list[str] | None,
    seeds: Mapping[str, int | None] | None = None,
) -> dict[str, Any]:
    """Return what made a report (`made_by`), and what it is about.

    `versions`: the lowest and the highest that answered. `seeds`: the seed of each part that drew at random; None: it
    took one of its own."""
    told = {"model": model, "model_digest": model_digest, "versions": versions, "seeds": dict(seeds or {})}
    return {"command": made["command"], "commit": made["commit"], **told}


def lowest_and_highest(versions: Iterable[int | str]) -> list[str] | None:
    """Return both as the API writes them (`7`, `NAME@7`); None if there are no versions."""
    found = sorted({str(each) for each in versions}, key=_place)
    return [found[0], found[-1]] if found else None


def in_png(origin: Origin | None) -> dict[str, str]:
    """Return the provenance for a PNG file, as its text `onward`."""
    return {"onward": json.dumps(origin)}


def _place(version: str) -> tuple[str, int]:
    found = _NAMED.fullmatch(version)
    return (version, 0) if found is None else (found[1] or "", int(found[2]))


def _commit() -> str | None:
    """Return the commit of the running checkout; None outside of one, as in a container image."""
    try:
        asked = ["git", "-C", str(_CHECKOUT), "rev-parse", "--show-toplevel", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    top, _, commit = done.stdout.strip().partition("\n")
    return commit if done.returncode == 0 and Path(top) == _CHECKOUT else None  # else it lies within another's checkout
