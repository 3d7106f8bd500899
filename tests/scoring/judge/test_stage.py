"""The scorer over a real log and a real store."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from stepping import step

from core import telemetry
from core.errors import LogError, LogUnavailable, NewerSchema, StoreUnavailable
from core.events import Reward, Topic
from core.ids import Namespace
from core.ports import TopicPartition
from core.settings import ScoringSettings
from core.store.ledger import Ledger, LedgerReader
from core.store.offsets import Offsets
from core.store.rewards import Rewards, RewardsReader
from ingest.sqlite.log import SqliteEventLog
from ingest.sqlite.schema import connect
from scoring import stage


def key(reward: Reward) -> tuple[str, int]:
    return reward.inference_id, reward.revision


def by_key(rewards: list[Reward]) -> dict[tuple[str, int], Reward]:
    found = {key(reward): reward for reward in rewards}
    assert len(found) == len(rewards), "a revision stands twice"
    return found


def counted(reason: str) -> float:
    return telemetry.SCORER_ODDITIES.labels(reason=reason)._value.get()


@pytest.mark.parametrize("seed", range(2))
def test_the_size_of_batches_changes_nothing(lab: ModuleType, seed: int) -> None:
    events = lab.random_events(seed, 300)
    expected = lab.score(lab.SPEC, events, batch=300)
    assert len({reward.revision for reward in expected}) > 2
    for batch in (1, 2, 7, 64):
        assert lab.score(lab.SPEC, events, batch) == expected


def test_rewards_are_published_in_order_and_once(lab: ModuleType, world: Any, run: Callable[..., list[Reward]]) -> None:
    rewards = run(lab.SPEC, lab.random_events(1, 200), 10_000)
    published = by_key(world.published())
    assert published == by_key(rewards)
    for inference_id, revisions in itertools.groupby(sorted(published), key=lambda entry: entry[0]):
        numbers = [revision for _, revision in revisions]
        dates = [published[inference_id, number].decided_at for number in numbers]
        assert (numbers, dates) == (list(range(len(numbers))), sorted(dates))


def test_a_second_life_goes_on_where_the_first_ended(lab: ModuleType, world: Any) -> None:
    events = lab.random_events(2, 200)
    world.append(*events[:120])
    first = world.scorer(lab.SPEC, batch_records=50)
    lab.drain(first)
    first.close()
    world.append(*events[120:])
    lab.drain(world.scorer(lab.SPEC))
    assert by_key(world.rewards()) == by_key(lab.score(lab.SPEC, events))


def test_only_a_small_batch_is_waited_after(
    lab: ModuleType, world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, sleep, mine = list[float](), time.sleep, threading.get_ident()

    def note(duration_s: float) -> None:  # other threads of this process, of earlier tests, may sleep meanwhile
        (slept.append if threading.get_ident() == mine else sleep)(duration_s)

    monkeypatch.setattr("scoring.stage.time.sleep", note)
    scorer = stage.Scorer(world.log, world.store, lab.SPEC, ScoringSettings(tick_s=60), world.clock)
    world.scorers.append(scorer)
    world.append(*(events.turn(f"s{number}", number) for number in range(192)))
    assert [step(scorer, 0.01) for _ in range(2)] == [64, 128], "more at once while it is quick"
    world.append(events.turn("t", 192))
    assert step(scorer, 0.01) == 1
    assert slept == [], "there may be more where so many came from"
    assert step(scorer, 0.01) == 0
    assert slept == [0.01], "no longer than asked for"


def test_waits_end_by_the_wall_clock_half_a_second_late(lab: ModuleType, world: Any, events: Any) -> None:
    world.append(events.turn("s", 0))
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    world.clock.advance_to(lab.at(35.4))  # the session has been idle for 35 s
    lab.drain(scorer)
    assert world.rewards() == []
    world.clock.advance_to(lab.at(35.5))
    lab.drain(scorer)
    (reward,) = world.rewards()
    assert (reward.value, reward.decided_at) == (-0.1, lab.at(35))


def test_the_wall_clock_does_not_overtake_what_is_still_to_read(lab: ModuleType, world: Any, events: Any) -> None:
    turns = [events.turn(f"s{index}", 0) for index in range(20)]
    world.clock.advance_to(lab.at(1000))  # the scorer was away for long
    world.append(*turns, *(events.outcome(turn, "rejected", True, 1) for turn in turns))
    lab.drain(world.scorer(lab.SPEC, batch_records=3))
    assert [(reward.value, reward.revision) for reward in world.rewards()] == [(-0.5, 0)] * 20


def test_outcomes_of_unknown_turns_wait_for_them(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 5)
    before = counted("unknown_inference")
    world.append(events.outcome(turn, "rejected", True, 6), events.outcome(events.turn("s", 0), "rejected", True, 6))
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    assert (world.rewards(), counted("unknown_inference") - before) == ([], 2)
    world.append(turn)
    lab.drain(scorer)
    (reward,) = world.rewards()
    assert (reward.inference_id, reward.value, reward.first_outcome_at) == (turn.inference_id, -0.5, lab.at(6))


def test_another_namespaces_outcome_does_not_count(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    foreign = events.outcome(turn, "rejected", True, 1, namespace=Namespace("other"))
    world.append(turn, foreign, events.outcome("s", "rejected", True, 2, namespace=Namespace("other")))
    lab.drain(world.scorer(lab.SPEC))
    assert world.rewards() == []


def test_repeated_records_count_once(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    said = [events.outcome(turn, "rating", 0.5, 1), events.outcome(turn, "rejected", True, 2)]
    world.append(turn, *said)
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    rewards = world.rewards()
    before = counted("duplicate")
    world.append(*said, turn, *said)
    lab.drain(scorer)
    assert (world.rewards(), counted("duplicate") - before) == (rewards, 5)


@pytest.mark.parametrize("fields", [{"trainable": False, "untrainable_reasons": ("temperature",)}, {"learn": False}])
def test_turns_that_cannot_train_are_scored(lab: ModuleType, world: Any, events: Any, fields: dict[str, Any]) -> None:
    turn = events.turn("s", 0, **fields)
    world.append(turn, events.outcome(turn, "rejected", True, 1))
    lab.drain(world.scorer(lab.SPEC))
    assert [reward.value for reward in world.rewards()] == [-0.5]


def test_open_turns_lag_and_rewards_are_measured(lab: ModuleType, world: Any, events: Any) -> None:
    firsts = telemetry.REWARDS.labels(kind="first")._value.get()
    turns = [events.turn("s", second) for second in range(3)]
    world.append(*turns, events.outcome(turns[0], "rejected", True, 3))
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    assert telemetry.OPEN_TURNS._value.get() == 2
    assert telemetry.SCORER_LAG._value.get() == 0
    assert telemetry.REWARDS.labels(kind="first")._value.get() - firsts == 1
    assert telemetry.REWARD_VALUE._value.get() == -0.5
    scorer.close()
    telemetry.OPEN_TURNS.set(99)
    step(world.scorer(lab.SPEC), 0)
    assert telemetry.OPEN_TURNS._value.get() == 2


def test_rewards_are_announced_once_the_store_has_them(lab: ModuleType, world: Any, events: Any) -> None:
    heard: list[tuple[str, int]] = []

    class Listener:
        def announce(self, channel: str) -> None:
            heard.append((channel, len(world.rewards())))

    turn = events.turn("s", 0)
    world.append(turn)
    scorer = world.scorer(lab.SPEC, announcer=Listener())
    lab.drain(scorer)
    assert not heard
    world.append(events.outcome(turn, "rejected", True, 1))
    lab.drain(scorer)
    assert heard == [("rewards", 1)]


# --------------------------------------------------------------------------------------------- what can go wrong


def corrupt(world: Any, raw: bytes) -> None:
    """Overwrite the latest record."""
    connection = connect(world.directory / "log.db", 5.0)
    connection.execute("UPDATE records SET raw = ? WHERE sequence = (SELECT max(sequence) FROM records)", (raw,))
    connection.close()


def test_undecodable_records_are_counted_and_passed(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    world.append(turn, events.turn("s", 1))
    corrupt(world, b"\xc1 no event")
    world.append(events.outcome(turn, "rejected", True, 2))
    before = counted("undecodable")
    lab.drain(world.scorer(lab.SPEC))
    assert ([reward.value for reward in world.rewards()], counted("undecodable") - before) == ([-0.5], 1)


def test_a_newer_schema_stops_the_scorer_before_it(lab: ModuleType, world: Any, events: Any) -> None:
    world.append(events.turn("s", 0))
    connection = connect(world.directory / "log.db", 5.0)
    (raw,) = connection.execute("SELECT raw FROM records").fetchone()
    connection.close()
    envelope = msgspec.msgpack.decode(raw)
    corrupt(world, msgspec.msgpack.encode([envelope[0] + 1, *envelope[1:]]))
    scorer = world.scorer(lab.SPEC)
    with pytest.raises(NewerSchema):
        lab.drain(scorer)
    with world.store.look() as view:
        assert not any(view.offsets.of_group("scorer").values())


def take_all(world: Any) -> None:
    """Make another scorer the owner of all partitions."""
    with world.store.work() as work:
        work.offsets.take_over("scorer", [TopicPartition(Topic.TURNS, number) for number in range(4)])


def test_a_later_owner_fences(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    world.append(turn)
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    take_all(world)
    world.append(events.outcome(turn, "rejected", True, 1))
    assert step(scorer, 0) == 0
    assert world.rewards() == []
    lab.drain(scorer)
    assert [reward.value for reward in world.rewards()] == [-0.5], (
        "the log says that it is the owner: it took over again"
    )


def test_the_wall_clock_is_fenced_too(lab: ModuleType, world: Any, events: Any) -> None:
    world.append(events.turn("s", 0))
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    take_all(world)
    world.clock.advance_to(lab.at(1000))
    assert step(scorer, 0) == 0
    assert world.rewards() == []
    lab.drain(scorer)
    assert [reward.value for reward in world.rewards()] == [-0.1]


def test_a_store_ahead_of_the_log_is_refused(lab: ModuleType, world: Any) -> None:
    with world.store.work() as work:
        work.offsets.put("scorer", TopicPartition(Topic.TURNS, 0), 7)
    with pytest.raises(LogError, match=r"onward.turns:0 up to offset 7, but the log ends at 0"):
        step(world.scorer(lab.SPEC), 0)


class Crash(Exception):
    """The end of the process."""


class Fuse:
    """A crash right before or after the n-th call of the scorer to the store or the log."""

    USES = (
        (LedgerReader, "due_turns"),
        (Ledger, "put_turns"),
        (Ledger, "put_outcomes"),
        (Rewards, "put"),
        (Offsets, "take_over"),
        (Offsets, "advance"),
        (RewardsReader, "unpublished"),
        (Rewards, "mark_published"),
        (SqliteEventLog, "append_blocking"),
    )

    def __init__(self, patch: pytest.MonkeyPatch, burns_at: int) -> None:
        self.left = burns_at
        for owner, name in self.USES:
            patch.setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def use(*arguments: Any, **options: Any) -> Any:
            self._burn()
            result = call(*arguments, **options)
            self._burn()
            return result

        return use

    def _burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


def test_a_crash_at_any_step_loses_and_doubles_nothing(lab: ModuleType, tmp_path: Path) -> None:
    events = lab.random_events(3, 24)
    expected = by_key(lab.score(lab.SPEC, events, until=lab.at(10_000)))
    published_again = 0
    for burns_at in itertools.count(1):
        (tmp_path / str(burns_at)).mkdir()
        world = lab.World(tmp_path / str(burns_at))
        world.append(*events)
        world.clock.advance_to(lab.at(10_000))
        first = world.scorer(lab.SPEC, batch_records=10)
        with pytest.MonkeyPatch.context() as patch:
            fuse = Fuse(patch, burns_at)
            with contextlib.suppress(Crash):
                lab.drain(first)
        first.close()
        lab.drain(world.scorer(lab.SPEC, batch_records=10))
        published = world.published()
        assert by_key(world.rewards()) == expected
        assert {key(reward): reward for reward in published} == expected
        published_again += len(published) > len(expected)
        world.close()
        if fuse.left > 0:
            break
    assert burns_at > 40
    assert published_again, "a crash after the append and before its mark publishes again"


def test_a_log_that_is_away_keeps_rewards_in_the_outbox(
    lab: ModuleType, world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = events.turn("s", 0)
    world.append(turn, events.outcome(turn, "rejected", True, 1))
    scorer = world.scorer(lab.SPEC)

    def away(*_: object) -> None:
        raise LogUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "append_blocking", away)
        assert step(scorer, 0) == 0
        assert len(world.rewards()) == 1
        assert world.published() == []
    lab.drain(scorer)
    assert len(world.published()) == len(world.rewards()) == 1


def test_a_store_that_is_away_is_tried_again(
    lab: ModuleType, world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = events.turn("s", 0)
    world.append(turn, events.outcome(turn, "rejected", True, 1))
    scorer = world.scorer(lab.SPEC)

    def away() -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "begin", away)
        assert step(scorer, 0) == 0
    lab.drain(scorer)
    assert [reward.value for reward in world.rewards()] == [-0.5]
