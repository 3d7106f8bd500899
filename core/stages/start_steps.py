"""The lines by which a process says how far its start has come, for who waits for it."""

import sys
import time

_BEGAN_S = time.monotonic()  # importing this is the first that the program does


def say_step(process: str, done: str) -> None:
    """Print what of the process' start is done, and how many seconds after its beginning."""
    sys.stderr.write(f"{process}: {done} {time.monotonic() - _BEGAN_S:.1f} s\n")
    sys.stderr.flush()
