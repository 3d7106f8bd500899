"""The cost per turn does not grow with the session's length, measured by work done rather than time."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ready_stores import open_in_memory
from sqlalchemy import event

from core.events import Completion, Event, Outcome
from core.reward_spec import RewardSpec, load_reward_spec
from core.store import SqlStore, ledger
from core.store.work import Work as UnitOfWork
from core.text.patterns import Pattern
from scoring.ledger import transaction as ledger_transaction
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.transaction import LedgerTransaction
from scoring.rewards import facts, rules
from scoring.rewards.defence import LeftOut

ROOT = Path(__file__).parents[3]
SHIPPED = load_reward_spec(ROOT / "onward" / "rewards.toml")
SHORT, LONG = 20, 200
EDIT = {"type": "function", "function": {"name": "edit_file", "parameters": {"properties": {"path": {}}}}}


def conversation(number: int, reach: int = 4) -> tuple[dict[str, Any], ...]:
    """Return the messages that a client with a full context sends: the latest ones."""
    said: list[dict[str, Any]] = []
    for place in range(max(0, number - reach), number):
        call = {"name": "edit_file", "arguments": f'{{"path": "f{place}", "text": "x"}}'}
        said.append({"role": "user", "content": f"please write part {place} of it"})
        said.append(
            {"role": "assistant", "content": f"part {place}", "tool_calls": [{"id": f"c{place}", "function": call}]}
        )
        said.append({"role": "tool", "tool_call_id": f"c{place}", "content": "done"})
    return (*said, {"role": "user", "content": f"please write part {number} of it"})


def session(events: Any, turns: int, *, branches: bool, every_s: float = 1.0) -> list[Event]:
    """Return turns that continue each other, or each begin anew; an outcome of each follows the next turn."""
    made: list[Event] = []
    last: Completion | None = None
    for number in range(turns):
        parent = None if last is None or branches else last.inference_id
        turn = events.turn(
            "s", number * every_s, messages=conversation(number), text=f"part {number}", parent_id=parent,
            group_id=f"g{number}", tools=(EDIT,),
        )  # fmt: skip
        made.append(turn)
        if last is not None:
            said: Outcome = events.outcome(last, "accepted", number % 2 == 0, number * every_s + 0.5)
            made.append(said)
        last = turn
    return made


class Work:
    """A counter of the work done, with a scorer's transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spec: RewardSpec) -> None:
        self.counts: Counter[str] = Counter()
        self._spec, self._cache = spec, SessionCache()
        self._store = open_in_memory()
        for module, name in (
            (ledger_transaction, "decide"),
            (ledger_transaction, "derive"),
            (ledger, "_turn"),
            (ledger, "_turn_row"),
        ):
            self._count(monkeypatch, module, name)
        for name in ("_decode", "_decode_facts"):
            self._count(monkeypatch, ledger, name)
        self._count(monkeypatch, LeftOut, "_is_burst")
        self._count(monkeypatch, rules, "heard_of", weigh=lambda turn, about, rules: len(about))

    def _count(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, weigh: Any = None) -> None:
        done = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            self.counts[name] += 1 if weigh is None else weigh(*arguments)
            return done(*arguments)

        monkeypatch.setattr(module, name, counted)

    def of(self, records: Sequence[Any]) -> Counter[str]:
        """Count the work for these records, in batches of two, as a live session comes."""
        self.counts.clear()
        for start in range(0, len(records), 2):
            transaction = LedgerTransaction(self._spec, self._cache)
            with self._store.begin() as connection:
                event.listen(connection, "before_cursor_execute", self._statement)
                transaction.take(UnitOfWork(connection), records[start : start + 2])
            self._cache.put(transaction.sessions)
            self.counts["rewards"] += len(transaction.rewards)
        return Counter(self.counts)

    def _statement(self, connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        self.counts["statements"] += 1


DEFENCE = {"burst_outcomes": 3, "burst_window_s": 20, "identical_outcomes": 1}
CASES = {
    "as shipped": (SHIPPED, False, 1.0),
    "whose outcomes are defended": (
        RewardSpec.model_validate(SHIPPED.model_dump(exclude_unset=True) | {"defence": DEFENCE}),
        False,
        1.0,
    ),
    "that begins anew": (SHIPPED, True, 1.0),
    "while all its turns wait": (SHIPPED, False, 0.001),
    "whose outcomes wait beyond its end": (
        RewardSpec.model_validate(
            {
                "outcomes": {
                    "accepted": {"type": "boolean", "weight": 1.0},
                    "survived": {"type": "number", "weight": 1.0, "wait_s": 1e6, "minimum": 0, "maximum": 1},
                },
                "session": {"credit": "discounted"},
            }
        ),
        False,
        1.0,
    ),
}


@pytest.mark.parametrize("which", CASES)
def test_a_turn_of_a_long_session_takes_the_work_of_one_of_a_short_one(
    lab: ModuleType, events: Any, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    spec, branches, every_s = CASES[which]
    work = Work(monkeypatch, spec)
    records = lab.records_of(session(events, LONG, branches=branches, every_s=every_s))
    first = work.of(records[: 2 * SHORT])
    work.of(records[2 * SHORT : -2 * SHORT])
    last = work.of(records[-2 * SHORT :])
    assert first["decide"] > 0
    assert first["statements"] > 0
    assert {name: count for name, count in last.items() if count > 1.25 * first[name] + 2} == {}


def test_a_turn_is_judged_by_what_it_adds_and_not_by_all_that_was_said(
    lab: ModuleType, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients send the whole conversation again; only the new part is searched and compared."""
    seen: Counter[str] = Counter()
    searched, normal = Pattern.is_in, facts.normal
    monkeypatch.setattr(Pattern, "is_in", lambda self, text: seen.update(searched=len(text)) or searched(self, text))
    monkeypatch.setattr(facts, "normal", lambda text: seen.update(compared=len(text)) or normal(text))
    rules = ["follow_up", "regenerated", "abandoned", "reverted", "tool_results", "survival"]
    claims = [{"says": "part", "needs": "^run_tests", "voided_by": "^edit"}]
    spec = RewardSpec.model_validate(
        SHIPPED.model_dump(exclude_unset=True) | {"claims": claims, "derived": {"rules": rules}}
    )

    def looked_at(number: int) -> Counter[str]:
        said = conversation(number, number)
        first = events.turn("s", 0, messages=said[:-4], text="x")
        turn = events.turn("s", 1, messages=said, text="part of it", parent_id=first.inference_id)
        store, cache = open_in_memory(), SessionCache()
        for record in lab.records_of([first, turn]):
            seen.clear()
            transaction = LedgerTransaction(spec, cache)
            with store.work() as work:
                transaction.take(work, [record])
            cache.put(transaction.sessions)
        store.close()
        return Counter(seen)

    few, many = looked_at(150), looked_at(3000)
    assert few["searched"] > 0
    assert few["compared"] > 0
    assert {name: count for name, count in many.items() if count > 1.25 * few[name]} == {}


@pytest.mark.parametrize("defence", [{}, DEFENCE])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_kept_in_memory_changes_no_reward(lab: ModuleType, seed: int, defence: dict[str, Any]) -> None:
    """Sessions are cached or loaded anew, and always loaded anew after a failed transaction."""
    spec = RewardSpec.model_validate(lab.SPEC.model_dump(exclude_unset=True) | {"defence": defence})
    records = lab.records_of(lab.random_events(seed, 200))
    made = []
    for cache, fails in ((None, False), (SessionCache(), False), (SessionCache(10), False), (SessionCache(), True)):
        store, rewards = open_in_memory(), []
        for start in range(0, len(records), 5):
            if fails:
                with pytest.raises(ZeroDivisionError):
                    _fail(store, LedgerTransaction(spec, cache), records[start : start + 5])
            transaction = LedgerTransaction(spec, cache)
            with store.work() as work:
                transaction.take(work, records[start : start + 5])
            rewards += transaction.rewards
            if cache is not None:
                cache.put(transaction.sessions)
        store.close()
        made.append(rewards)
    assert made[0]
    assert made[1:] == [made[0]] * 3


def _fail(store: SqlStore, transaction: LedgerTransaction, records: Sequence[Any]) -> None:
    with store.work() as work:
        transaction.take(work, records)
        raise ZeroDivisionError


def test_the_shelf_keeps_so_many_turns_and_what_was_used_last(lab: ModuleType, events: Any) -> None:
    cache, store = SessionCache(4), open_in_memory()
    for name in ("a", "b", "c"):
        transaction = LedgerTransaction(lab.SPEC, cache)
        with store.work() as work:
            transaction.take(work, lab.records_of([events.turn(name, at) for at in range(6 if name == "c" else 2)]))
        cache.put(transaction.sessions)
        kept = {session_id for _, session_id in (session.key for session in cache)}
        assert kept == ({"c"} if name == "c" else {"a", "b"} if name == "b" else {"a"})
    store.close()
