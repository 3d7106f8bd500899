"""A record that the scorer cannot handle is set aside, and all others keep their rewards."""

from contextlib import closing
from types import ModuleType
from typing import Any

import pytest
from judge_world import Judging, endpoint_of_our_own
from stepping import step
from stores import KINDS, database
from watched_world import Users, Watching

from core import telemetry
from core.clock import SystemClock
from core.codec import encode
from core.errors import StoreUnavailable
from core.events import Completion, DeadLetter, Topic
from core.ids import InferenceId, UserHash
from core.settings import IngestSettings, ScoringSettings
from core.store.work import View
from ingest.writer import Writer
from scoring.judge import endpoint as asking
from scoring.ledger import transaction
from scoring.monitors import Monitor
from scoring.stage import Scorer
from scoring.watching import stage as watching_stage

_TOO_LARGE = 2**63  # for the store's integers; the log takes it


def letters(world: Any) -> list[DeadLetter]:
    with world.store.look() as view:
        return view.dead_letters.newest(100)


def crowd(events: Any, count: int) -> list[Any]:
    """Return turns of `count` users, each of which is then rejected, which decides it."""
    turns = [events.turn(f"session-{number}", number / 10) for number in range(count)]
    return [event for turn in turns for event in (turn, events.outcome(turn, "rejected", True, 10))]


def spoken(events: list[Any]) -> list[InferenceId]:
    return [event.inference_id for event in events if isinstance(event, Completion)]


def test_a_turn_that_cannot_be_stored_is_set_aside(lab: ModuleType, world: Any, events: Any) -> None:
    others = crowd(events, 30)
    poison = events.turn("poison", 1, turn_index=_TOO_LARGE)
    world.append(*others[:20], poison, *others[20:])
    failed = telemetry.STAGE_FAILED_RECORDS.labels(part="scorer")
    before = failed._value.get()
    lab.drain(world.scorer(lab.SPEC))
    assert lab.last_values(world.rewards()) == dict.fromkeys(spoken(others), -0.5)
    (letter,) = letters(world)
    assert (letter.raw, letter.topic) == (encode(poison), Topic.TURNS)
    assert letter.reason.startswith("the scorer cannot take it: OverflowError: ")
    assert failed._value.get() - before == 1
    assert {reward.inference_id for reward in world.published()} == set(spoken(others))


def test_what_is_tried_again_counts_once(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("honest", 0)
    early = events.outcome(events.turn("never", 0), "rejected", True, 0)
    poison = events.turn("honest", 1, turn_index=_TOO_LARGE)
    duplicates = telemetry.SCORER_ODDITIES.labels(reason="duplicate")
    unknown = telemetry.SCORER_ODDITIES.labels(reason="unknown_inference")
    before = duplicates._value.get(), unknown._value.get()
    world.append(turn, turn, early, poison)
    lab.drain(world.scorer(lab.SPEC))
    assert (duplicates._value.get() - before[0], unknown._value.get() - before[1]) == (1, 1)


def test_what_the_rules_cannot_bear_is_tried_so_often_and_then_set_aside(
    lab: ModuleType, world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = events.turn("poison", 1, text="poison")
    tries = []
    facts_of = transaction.facts_of

    def fragile(completion: Any, *others: Any) -> Any:
        if completion.text == "poison":
            tries.append(completion)
            raise KeyError("poison")
        return facts_of(completion, *others)

    monkeypatch.setattr(transaction, "facts_of", fragile)
    world.append(poison)
    scorer = world.scorer(lab.SPEC, record_attempts=5)
    lab.drain(scorer)
    assert len(tries) == 5
    assert [letter.reason for letter in letters(world)] == ["the scorer cannot take it: KeyError: 'poison'"]
    monkeypatch.undo()
    world.append(poison, events.outcome(poison, "rejected", True, 2))  # as `redrive` brings it back
    lab.drain(scorer)
    assert lab.last_values(world.rewards()) == {poison.inference_id: -0.5}


def test_an_outage_amid_a_batch_blames_nobody(
    lab: ModuleType, world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = crowd(events, 3)
    away = iter([True, True])
    facts_of = transaction.facts_of

    def fragile(*given: Any) -> Any:
        if next(away, False):
            raise StoreUnavailable("away")
        return facts_of(*given)

    monkeypatch.setattr(transaction, "facts_of", fragile)
    world.append(*others)
    scorer = world.scorer(lab.SPEC)
    while lab.last_values(world.rewards()) != dict.fromkeys(spoken(others), -0.5):
        step(scorer, 0)
    assert letters(world) == []


def test_what_time_cannot_decide_blames_no_record(
    lab: ModuleType, world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, other = events.turn("poison", 0), events.turn("other", 0)
    decide = transaction.decide

    def fragile(turn: Any, session: Any, about: Any, spec: Any, now: Any) -> Any:
        if turn.session_id == "poison" and now > turn.opened_at:
            raise OverflowError("poison")
        return decide(turn, session, about, spec, now)

    monkeypatch.setattr(transaction, "decide", fragile)
    world.append(poison, other)
    scorer = world.scorer(lab.SPEC)
    lab.drain(scorer)
    world.clock.advance_to(lab.at(1000))
    lab.drain(scorer)
    assert lab.last_values(world.rewards()) == {other.inference_id: -0.1}
    assert letters(world) == []
    assert telemetry.OPEN_TURNS._value.get() == 0
    later = [events.turn(f"later-{number}", 1001) for number in range(40)]  # of the same partitions
    world.append(*later)
    lab.drain(scorer)
    assert letters(world) == []


@pytest.mark.parametrize("kind", KINDS)
def test_writer_and_scorer_set_aside_what_the_store_does_not_hold(
    lab: ModuleType, world: Any, events: Any, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """Neither database has integers so large, and Postgres' text has no zero byte, though SQLite's has."""
    others = crowd(events, 30)
    large, zero = events.turn("poison", 1, turn_index=_TOO_LARGE), events.turn("poison", 2, user_id=UserHash("\0"))
    world.append(*others[:20], large, *others[20:40], zero, *others[40:])
    with database(kind, tmp_path_factory.mktemp("elsewhere")) as home, closing(home.open()) as store:
        writer = Writer(world.log, store, IngestSettings(batch_records=64), SystemClock())
        scorer = Scorer(world.log, store, lab.SPEC, ScoringSettings(tick_s=1e-6), world.clock)
        for stage in (writer, scorer):
            while step(stage, 0):
                pass
            stage.close()
        with store.read() as connection:
            found = View(connection).dead_letters.newest(100)
            stored = connection.exec_driver_sql("SELECT count(*) FROM outcomes").scalar()
        expected = [encode(large)] if kind == "sqlite" else [encode(large), encode(zero)]
        assert sorted(letter.raw for letter in found) == sorted(expected)
        assert all(letter.reason.startswith("the writer cannot take it: ") for letter in found), "it came first"
        assert stored == 30
        assert lab.last_values(world.rewards(store)) == dict.fromkeys(spoken(others), -0.5)


def test_the_monitors_set_aside_what_they_cannot_watch(
    lab: ModuleType, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, watching = Users(world, lab), Watching(world, lab)
    watch = watching_stage.watch

    def fragile(turn: Any, patterns: Any) -> Any:
        if turn.text == "poison":
            raise RecursionError("poison")
        return watch(turn, patterns)

    monkeypatch.setattr(watching_stage, "watch", fragile)
    watcher = watching.start()
    users.work(100)
    watching.look()
    (poison,) = users.work(1, text="poison")
    users.work(200, breaks=0.5)
    assert ("invalid_calls", "opened") in watching.look(), "it goes on to watch the others"
    (letter,) = letters(world)
    assert letter.raw == encode(poison)
    assert letter.reason == "the monitors cannot take it: RecursionError: poison"
    watching.start()
    assert ("invalid_calls", "opened") in watching.look(), "so does one that begins again, and reads it once more"
    assert len(letters(world)) == 1
    for each in (watcher, watching.watchers[-1]):
        each.close()


def test_a_monitor_that_cannot_look_keeps_no_other_from_it(
    lab: ModuleType, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(window: Any) -> None:
        raise OverflowError("too much")

    users, watching = Users(world, lab), Watching(world, lab)
    watcher = watching.start()
    watcher._monitors.insert(0, Monitor("broken", overflow, "warning", False))
    failures = telemetry.MONITOR_FAILURES.labels(monitor="broken")
    users.work(100)
    watching.look()
    users.work(200, breaks=0.5)
    assert ("invalid_calls", "opened") in watching.look()
    assert failures._value.get() > 0
    watcher.close()


def test_the_judge_sets_aside_what_it_cannot_ask_about(world: Any, events: Any) -> None:
    """A tool's function is a list, or a text fits into no request."""
    poison = events.turn("poison", 0, tools=({"type": "function", "function": []},))
    other = events.turn("other", 0)
    world.append(poison, other)
    with endpoint_of_our_own() as endpoint:
        judging = Judging(world, endpoint)
        judge = judging.start()
        judging.run(judge)
        judge.close()
        assert endpoint.asked_about(other.text) > 0
    (letter,) = letters(world)
    assert letter.raw == encode(poison)
    assert letter.reason.startswith("the judge cannot take it: AttributeError: ")
    assert [said.inference_id for said in judging.said()] == [other.inference_id]


def test_the_judge_sets_aside_what_its_requests_cannot_bear(
    world: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, other = events.turn("poison", 0, text="poison"), events.turn("other", 0)
    world.append(poison, other)
    ask, tries = asking.JudgeEndpoint.votes, []

    async def fragile(self: Any, messages: Any) -> Any:
        if '"poison"' in messages[-1]["content"]:
            tries.append(messages)
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "poison")
        return await ask(self, messages)

    monkeypatch.setattr(asking.JudgeEndpoint, "votes", fragile)
    with endpoint_of_our_own() as endpoint:
        judging = Judging(world, endpoint)
        judge = judging.start()
        judging.run(judge)
        judge.close()
    assert [letter.raw for letter in letters(world)] == [encode(poison)]
    assert len(tries) == 3
    assert [said.inference_id for said in judging.said()] == [other.inference_id]
