"""A script: simulated users, as of `python -m simulator`, who come until it gets SIGTERM; then it reports as ever."""

import signal
import sys
import time
from typing import Any

from simulator import __main__ as program
from simulator.drive import RunOptions


def stay(*args: Any) -> RunOptions:
    """Return the traffic of these options, which ends with the signal."""
    traffic, began = RunOptions(*args), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: object.__setattr__(traffic, "seconds", time.monotonic() - began))
    return traffic


if __name__ == "__main__":
    program.RunOptions = stay  # type: ignore[assignment, misc]
    sys.exit(program.main())
