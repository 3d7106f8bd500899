"""However often somebody reports, and however long her words: what it costs is bounded, and the first ones count."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
from ready_stores import open_in_memory
from stepping import step

from core import telemetry
from core.events import Event, Outcome, Reward, TextEdit
from core.operations.ledger import Heard, SessionKey
from core.reward_spec.roles import CONSENT_WITHDRAWN
from core.store import SqlStore
from scoring.ledger import bounds
from scoring.ledger.pages import load_sessions
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.transaction import LedgerTransaction

MOST, MANY = 20, 32
LONG = 200_000
Scored = tuple[list[Reward], Counter[str]]
Score = Callable[[Sequence[Event]], Scored]


@pytest.fixture(autouse=True)
def most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_MOST_HEARD", MOST)


@pytest.fixture(params=["kept in memory", "loaded again"])
def cache(request: pytest.FixtureRequest) -> SessionCache | None:
    return SessionCache() if request.param == "kept in memory" else None


@pytest.fixture
def store() -> Iterator[SqlStore]:
    store = open_in_memory()
    yield store
    store.close()


@pytest.fixture
def score(lab: ModuleType, store: SqlStore, cache: SessionCache | None) -> Score:
    def score(log: Sequence[Event]) -> Scored:
        records, rewards, oddities = lab.records_of(log), list[Reward](), Counter[str]()
        for start in range(0, len(records), 50):
            transaction = LedgerTransaction(lab.SPEC, cache)
            with store.work() as work:
                transaction.take(work, records[start : start + 50])
            if cache is not None:
                cache.put(transaction.sessions)
            rewards += transaction.rewards
            oddities += transaction.oddities
        return rewards, oddities

    return score


def ratings(events: Any, about: Any, number: int) -> list[Outcome]:
    return [events.outcome(about, "tests_passed", place % 2 == 0, 1 + place / 1000) for place in range(number)]


def test_of_one_turn_so_much_is_heard_and_what_takes_it_back(events: Any, score: Score) -> None:
    turn, other = events.turn("s", 0), events.turn("s", 0)
    said = ratings(events, turn, MANY)
    taken_back = [events.withdrawal(each, 2) for each in said]
    beside = events.outcome(other, "rejected", True, 3)
    rewards, oddities = score([turn, other, events.outcome(turn, "rejected", True, 0.5), *said])
    heard = [reward for reward in rewards if reward.inference_id == turn.inference_id]
    assert max(len(reward.outcome_ids) for reward in heard) == MOST
    assert oddities["too_many"] == MANY + 1 - MOST
    rewards, oddities = score([beside, *taken_back])
    assert rewards[0].inference_id == other.inference_id, "of another turn of the session as much is heard"
    assert rewards[-1].outcome_ids == rewards[1].outcome_ids[:1], "all that was heard is taken back but the refusal"
    assert oddities["too_many"] == MANY + 1 - MOST, "what takes back what was not heard"


def test_withdrawn_consent_is_heard_however_much_was_said_before(events: Any, score: Score) -> None:
    turn = events.turn("s", 0)
    said = [turn, events.outcome(turn, "rejected", True, 0.5), *ratings(events, turn, MANY)]
    rewards, _ = score([*said, events.outcome(turn, CONSENT_WITHDRAWN, True, 3)])
    assert rewards[-1].void


def test_of_a_session_the_less_is_heard_the_more_turns_it_is_about(
    events: Any, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_MOST_DECISIONS", 68)
    for session, turns, heard in (("a", 2, 20), ("b", 4, 17), ("c", 30, 16)):
        log = [events.turn(session, 0) for _ in range(turns)]
        _, oddities = score([*log, *ratings(events, session, 40)])
        assert oddities["too_many"] == 40 - heard


def test_what_comes_before_its_turn_is_bounded_too(events: Any, score: Score) -> None:
    turn = events.turn("s", 5)
    rewards, oddities = score([*ratings(events, turn, MANY), turn, events.outcome(turn, "rejected", True, 6)])
    assert oddities["too_many"] == MANY + 1 - MOST
    assert rewards == [] or len(rewards[-1].outcome_ids) <= MOST


def test_of_long_words_as_much_is_kept_as_a_reward_tells(
    lab: ModuleType, events: Any, score: Score, store: SqlStore, cache: SessionCache | None
) -> None:
    turn, words = events.turn("s", 0), " so it goes \U0001f600" * (LONG // 13)
    said = [
        events.outcome(turn, "comment", words, 1),
        events.outcome(turn, "comment", " " * LONG, 1),
        events.outcome(turn, "rejected", True, 1, evidence=words),
    ]
    rewards, _ = score([turn, *said])
    assert [hint.text for hint in rewards[-1].hints] == [words.strip()[:2000].strip()] * 2
    with store.look() as view:
        kept = [heard.outcome for _, heard in view.ledger.outcomes(lab.NAMESPACE, [turn.session_id])]
    assert sorted(len(each.evidence or str(each.value)) for each in kept) == [2000] * 3
    assert cache is None or sum(session.size for session in cache) < 50


def test_what_a_former_build_stored_whole_is_not_kept_whole_in_memory(
    lab: ModuleType, events: Any, store: SqlStore
) -> None:
    turn = events.turn("s", 0)
    said, key = (
        events.outcome(turn, "rejected", True, 1, evidence="x" * LONG),
        SessionKey((lab.NAMESPACE, turn.session_id)),
    )
    with store.work() as work:
        work.ledger.put_outcomes([(Heard(said, 1), turn.session_id)])
    with store.look() as view:
        session = load_sessions(view, [key])[key]
    assert [len(heard.outcome.evidence or "") for heard in session.said] == [2000]


def test_of_further_texts_than_a_session_may_have_the_value_counts_and_no_word(
    lab: ModuleType, events: Any, score: Score, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_MOST_PUT_IN", 10)
    edit = TextEdit(start=0, end=1, token_ids=(7,) * 6)
    turn = events.turn("s", 0)
    said = [events.outcome(turn, "rating", 0.5, 1, edits=(edit,), evidence="x") for _ in range(3)]
    rewards, _ = score([turn, *said, events.outcome(turn, "rejected", True, 2)])
    with store.look() as view:
        kept = {
            heard.outcome.outcome_id: heard.outcome
            for _, heard in view.ledger.outcomes(lab.NAMESPACE, [turn.session_id])
        }
    assert [kept[each.outcome_id].edits for each in said] == [(edit,), (), ()]
    assert {each.outcome_id for each in said} < set(rewards[-1].outcome_ids)


def test_the_cache_counts_texts_by_what_they_take(lab: ModuleType, events: Any) -> None:
    cache, store = SessionCache(100), open_in_memory()
    for name in ("a", "b", "c"):
        turn = events.turn(name, 0)
        edits = (TextEdit(start=0, end=0, token_ids=tuple(range(1500))),)
        transaction = LedgerTransaction(lab.SPEC, cache)
        with store.work() as work:
            transaction.take(work, lab.records_of([turn, events.outcome(turn, "rating", 0.5, 1, edits=edits)]))
        cache.put(transaction.sessions)
    assert {session.key[1] for session in cache} == {"c"}
    store.close()


def test_the_metric_says_how_much_was_not_heard(events: Any, lab: ModuleType) -> None:
    counter = telemetry.SCORER_ODDITIES.labels(reason="too_many")
    before, turn = counter._value.get(), events.turn("s", 0)
    lab.score(lab.SPEC, [turn, *ratings(events, turn, MANY)])
    assert counter._value.get() - before == MANY - MOST


def test_few_records_are_taken_at_once_while_they_are_dear(
    world: Any, lab: ModuleType, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file all others wait for a transaction, and a record costs what its user chose."""
    scorer, quick = world.scorer(lab.SPEC, batch_records=256), "scoring.stage._QUICK_S"
    monkeypatch.setattr("scoring.stage._GIVE_WAY_S", 0.0)
    assert scorer.room() == 64, "at first nobody knows what they cost"
    world.append(*(events.turn("s", 0) for _ in range(700)))
    monkeypatch.setattr(quick, 1e-9)
    while scorer.room() > 1:
        assert step(scorer, 0)
    monkeypatch.setattr(quick, 1e9)
    rooms = [scorer.room()]
    while step(scorer, 0):
        rooms.append(scorer.room())
    assert max(rooms) == 256, "as many as are behind"
    world.append(events.turn("s", 0))
    lab.drain(scorer)
    assert scorer.room() == 64
