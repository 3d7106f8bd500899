"""The end of a process, told by a signal whatever the process is doing."""

import subprocess
import sys
import threading

from core.stages.ending import Ending

SIGNALLED_WHILE_IT_WAITS = """
import signal
from core.stages.ending import Ending

ending = Ending()
signal.signal(signal.SIGALRM, lambda *_: ending.tell())
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
for _ in range(200_000):
    ending.wait(0.0)
signal.setitimer(signal.ITIMER_REAL, 0)
print(ending.wait())
"""


def test_signals_may_come_at_any_moment_of_a_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IT_WAITS], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "True\n"


def test_all_who_wait_are_told() -> None:
    ending, told = Ending(), []
    threads = [threading.Thread(target=lambda: told.append(ending.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not told
    ending.tell()
    for thread in threads:
        thread.join(60)
    assert told == [True] * 3


def test_a_wait_that_nobody_ends_is_over_in_time() -> None:
    ending = Ending()
    assert not ending.wait(0.01)
    assert not ending.is_due()
