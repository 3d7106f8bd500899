"""`onward notify` as a process, killed in the middle; `onward alerts test`."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import made_events
import pytest
from receiver import Receiver, receiver
from service_tree import wait_for
from stage_processes import StageProcess

from onward.wiring.foundation import Foundation, open_foundation


@pytest.fixture
def taker() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def foundation(tmp_path: Path, taker: Receiver) -> Iterator[Foundation]:
    directory = tmp_path / "service"
    directory.mkdir()
    (directory / "onward.toml").write_text(
        f'[alerts]\nretry_s = 0.1\n[alerts.targets.ops]\nurl = "{taker.url}/secret-place"\n'
        "timeout_s = 60\n"  # a pause of the machine is no silence, after which it would be asked once more
        'secret = "of-many-more-characters"\n'
    )
    foundation = open_foundation(directory)
    yield foundation
    foundation.close()


def raise_alarms(foundation: Foundation, *names: str) -> None:
    with foundation.store.work() as work:
        for name in names:
            assert work.alarms.open(made_events.opening(name, opened_at=datetime.now(UTC)))


def test_killed_in_the_middle_it_tells_each_change_once_more_at_most(foundation: Foundation, taker: Receiver) -> None:
    """The change whose answer it did not live to hear comes again, with its key; all others come once."""
    with StageProcess("notify", foundation.layout.root, "notifier", {}) as process:
        raise_alarms(foundation, "a", "b")
        wait_for(lambda: taker.answered == 2)  # one that is asked and not answered yet would be held, too
        taker.held.clear()
        raise_alarms(foundation, "c", "d")
        wait_for(lambda: len(taker.requests) == 3)
        process.kill()
        with foundation.store.work() as work:
            work.alarms.close("a", datetime.now(UTC))
        taker.held.set()
        process.restart()
        wait_for(lambda: {"a.closed", "c.opened", "d.opened"} <= set(taker.keys[3:]))
        process.stop()
        assert "secret-place" not in process.log_text()
    assert sorted(taker.keys) == ["a.closed", "a.opened", "b.opened", "c.opened", "c.opened", "d.opened"]


def test_targets_can_be_tried(foundation: Foundation, taker: Receiver) -> None:
    command = [sys.executable, "-m", "onward", "alerts", "test", str(foundation.layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ops: told\n"), done.stderr
    assert [request.body["status"] for request in taker.requests] == ["firing", "resolved"]
    taker.answers = [401]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "ops: answered 401\n")
