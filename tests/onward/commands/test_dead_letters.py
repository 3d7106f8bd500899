"""The operator lists dead letters, sees their reasons, and returns them to the log once they can be read."""

from datetime import UTC, datetime
from pathlib import Path

import made_events
import pytest

from core.codec import encode
from core.errors import ConfigError, OnwardError
from core.events import DeadLetter, Event, Topic
from core.ids import base_ref
from onward.commands import dead_letters
from onward.replays.history import keep_once
from onward.wiring.foundation import open_foundation

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENDED = made_events.ended("s")
POLICY = made_events.policy(base_ref(1))
REWARD = made_events.reward("00000000-0000-7000-8000-000000000000")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with three dead letters: garbage, a readable event, and one of another topic."""
    foundation = open_foundation(tmp_path / "service")
    raws = (b"\xff garbage " * 40, encode(ENDED), encode(POLICY))
    letters = [
        DeadLetter(topic=Topic.TURNS, partition=1, offset=offset, reason=f"reason {offset}", raw=raw, at=NOW)
        for offset, raw in enumerate(raws)
    ]
    with foundation.store.work() as work:
        work.dead_letters.put(letters)
    foundation.close()
    return tmp_path / "service"


def turns(directory: Path, topic: Topic = Topic.TURNS) -> list[Event | None]:
    foundation = open_foundation(directory)
    reader = foundation.log.reader([topic])
    found = [record.event for record in reader.poll(100, 0.0)]
    reader.close()
    foundation.close()
    return found


def test_they_are_listed_and_shown_whole(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead_letters.show_all(directory, {}, 2, as_json=False)
    told = capsys.readouterr().out
    assert "onward.turns:1:2" in told
    assert "onward.turns:1:1" in told
    assert "onward.turns:1:0" not in told, "the latest two"
    dead_letters.show_one(directory, {}, "onward.turns:1:0", tmp_path / "raw")
    told = capsys.readouterr().out
    assert "reason 0" in told
    assert "garbage" in told
    assert (tmp_path / "raw").read_bytes() == b"\xff garbage " * 40


def test_one_that_can_be_used_goes_back_and_is_no_longer_dead(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_letters.redrive(directory, {}, "onward.turns:1:1")
    assert turns(directory) == [ENDED]
    with pytest.raises(ConfigError, match="no such record"):
        dead_letters.redrive(directory, {}, "onward.turns:1:1")
    dead_letters.show_all(directory, {}, 50, as_json=False)
    assert "onward.turns:1:1" not in capsys.readouterr().out.split("Dead letters", 1)[1]


@pytest.mark.parametrize(
    ("offset", "why"), [(0, "still cannot be used"), (2, r"a PolicyVersion does not belong into onward\.turns")]
)
def test_one_that_cannot_stays(directory: Path, offset: int, why: str) -> None:
    with pytest.raises(OnwardError, match=why):
        dead_letters.redrive(directory, {}, f"onward.turns:1:{offset}")
    assert turns(directory) == []
    dead_letters.show_one(directory, {}, f"onward.turns:1:{offset}", None)


def test_a_reward_goes_back_to_the_rewards(directory: Path) -> None:
    foundation = open_foundation(directory)
    letter = DeadLetter(topic=Topic.REWARDS, partition=0, offset=7, reason="r", raw=encode(REWARD), at=NOW)
    stray = DeadLetter(topic=Topic.REWARDS, partition=0, offset=8, reason="r", raw=encode(ENDED), at=NOW)
    with foundation.store.work() as work:
        work.dead_letters.put([letter, stray])
    foundation.close()
    dead_letters.redrive(directory, {}, "onward.rewards:0:7")
    assert turns(directory, Topic.REWARDS) == [REWARD]
    with pytest.raises(OnwardError, match=r"a SessionEnded does not belong into onward\.rewards"):
        dead_letters.redrive(directory, {}, "onward.rewards:0:8")


@pytest.mark.parametrize("name", ["", "onward.turns", "onward.turns:1", "onward.turns:1:x", "onward.turns:9:9"])
def test_what_names_none_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"want TOPIC:PARTITION:OFFSET|no such record"):
        dead_letters.show_one(directory, {}, name, None)


def test_a_directory_in_which_no_service_ran_is_left_as_it_was(tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    typo.mkdir()
    commands = (
        lambda: dead_letters.show_all(typo, {}, 10, as_json=False),
        lambda: dead_letters.show_one(typo, {}, "turns:0:1", None),
        lambda: dead_letters.redrive(typo, {}, "turns:0:1"),
        lambda: keep_once(typo, {}),
    )
    for command in commands:
        with pytest.raises(ConfigError, match="no service has run"):
            command()
    assert list(typo.iterdir()) == []
