"""The place of a scored past is gone with the work, however the work before ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kept_world import append, past
from logged_world import MODEL

from core.errors import ConfigError
from learner.sequences.resemblance import NOTHING_KEPT_OUT
from onward.directory.layout import SHIPPED_REWARDS
from onward.replays.rescore import compare_specs
from onward.replays.scratch import scratch
from onward.replays.session_corpus import SessionChoice, gather
from onward.replays.suites.mining import DraftFilter, mine

_AT_WORK = """
import sys, time
from pathlib import Path
from onward.replays.scratch import scratch
with scratch(Path(sys.argv[1]), "it") as place:
    (place / "store.db").write_text("what users said")
    print("at work", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_run_left_goes_with_the_next_and_nobody_shares_it(tmp_path: Path) -> None:
    place = tmp_path / "new" / "past.partial"
    command = [sys.executable, "-c", _AT_WORK, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "at work\n"
        with (
            pytest.raises(ConfigError, match=r"^DIR: another process is at the same work here$"),
            scratch(place, "DIR"),
        ):
            pass
        os.kill(other.pid, signal.SIGKILL)
    assert (place / "store.db").exists()
    with scratch(place, "DIR") as mine:
        assert list(mine.iterdir()) == []
    assert not place.exists()


def test_it_goes_also_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch(tmp_path / "past.partial", "DIR") as place:
            (place / "folder").mkdir()
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_goes_with_the_next_one_of_its_kind(tmp_path: Path) -> None:
    service, out = tmp_path / "service", tmp_path / "out"
    append(service, past(4))
    places = [service / "rescore.partial", out / "scored.partial", service / "mine.partial"]
    for place in places:
        place.mkdir(parents=True)
        (place / "store.db").write_text("what users said")
    compare_specs(service, SHIPPED_REWARDS, None, None, None)
    gather(SessionChoice(service, None, None, min_reward=-9.0), MODEL, 512, out, {}, NOTHING_KEPT_OUT, again=False)
    mine(service, tmp_path / "suite", DraftFilter(), {})
    assert [place for place in places if place.exists()] == []
