"""Runs a check: `.ci/run`, what a change can break cheaply; `.ci/run deep`, the rest.

Ends with a table of the parts, and writes the same to build/ci.json or build/deep.json after each of them. The exit
status is 0 if everything passed, else 1."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from checks import parts
from checks.check import Check
from checks.second_tries import History

_ROOT = Path(__file__).parents[2]
_PYTEST = "--durations=10 --durations-min=5 --tb=short -p checks.recorder"


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/run", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("ci", "deep"), default="ci")
    name = parser.parse_args().what
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever starts us in the background may have had us ignore ^C
        signal.signal(number, _stop)
    # What is ours alone: a service refuses settings that it does not know.
    base, cache = (os.environ.pop(f"ONWARD_CI_{name}", "") for name in ("BASE", "CACHE"))
    os.environ["PYTHONPATH"] = str(_ROOT / ".ci")  # where pytest finds the recorder
    os.environ |= {"ONWARD_REQUIRE_SERVICES": "1", "PYTHONUNBUFFERED": "1", "PYTEST_ADDOPTS": _PYTEST}
    kept = Path(cache or Path.home() / ".cache" / "onward-ci")
    os.environ["CHECK_CACHE"] = str(kept)
    history = History(kept / "history")
    check = Check(_ROOT, name, parts.DEEP if name == "deep" else parts.CHECK, history, base)
    return 0 if check.run() else 1


def _stop(_signal: int, _frame: FrameType | None) -> None:
    """End as ^C does, so that what was started is ended and what is known is written."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
