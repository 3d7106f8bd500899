"""Waiting for what another thread or process does."""

import subprocess
import time
from collections.abc import Callable


def wait_for(
    condition: Callable[[], object], process: "subprocess.Popen[bytes] | None" = None, timeout_s: float = 120.0
) -> None:
    """Until the condition holds, while the process, if any, runs."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert process is None or process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)
