"""A session costs per turn what any other does, however long it is: told by the work that is done, not by the clock."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import event

from core.events import Completion, Event, Outcome
from core.reward_spec import RewardSpec, load_reward_spec
from core.store import SqlStore, ledger, open_sqlite
from core.store.work import Work as UnitOfWork
from core.text.patterns import Pattern
from scoring.ledger import transaction as books
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.transaction import LedgerTransaction
from scoring.rewards import facts, rules
from scoring.rewards.defence import LeftOut

ROOT = Path(__file__).parents[3]
SHIPPED = load_reward_spec(ROOT / "onward" / "rewards.toml")
SHORT, LONG = 20, 400
EDIT = {"type": "function", "function": {"name": "edit_file", "parameters": {"properties": {"path": {}}}}}


def conversation(number: int, reach: int = 4) -> tuple[dict[str, Any], ...]:
    """What a client sends whose context is full: the latest of it."""
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
    """Turns that continue each other, or that all begin anew, each of which is spoken of after the next one."""
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
    """What is done, counted where it is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spec: RewardSpec) -> None:
        self.counts: Counter[str] = Counter()
        self._spec, self._shelf = spec, SessionCache()
        self._store = open_sqlite(Path(":memory:"))
        for module, name in ((books, "decide"), (books, "derive"), (ledger, "_turn"), (ledger, "_turn_row")):
            self._count(monkeypatch, module, name)
        for name in ("_decode", "_decode_facts"):
            self._count(monkeypatch, ledger, name)
        self._count(monkeypatch, LeftOut, "_is_burst")
        self._count(monkeypatch, rules, "_by_name", weigh=lambda turn, about, rules: len(about))

    def _count(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, weigh: Any = None) -> None:
        done = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            self.counts[name] += 1 if weigh is None else weigh(*arguments)
            return done(*arguments)

        monkeypatch.setattr(module, name, counted)

    def of(self, records: Sequence[Any]) -> Counter[str]:
        """In batches of two, as a session comes that people speak with."""
        self.counts.clear()
        for start in range(0, len(records), 2):
            book = LedgerTransaction(self._spec, self._shelf)
            with self._store.begin() as connection:
                event.listen(connection, "before_cursor_execute", self._statement)
                book.take(UnitOfWork(connection), records[start : start + 2])
            self._shelf.put(book.sessions)
            self.counts["rewards"] += len(book.rewards)
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
    """The clients that send all of a conversation again: what of it is searched and compared."""
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
        store, shelf = open_sqlite(Path(":memory:")), SessionCache()
        for record in lab.records_of([first, turn]):
            seen.clear()
            book = LedgerTransaction(spec, shelf)
            with store.work() as work:
                book.take(work, [record])
            shelf.put(book.sessions)
        store.close()
        return Counter(seen)

    few, many = looked_at(150), looked_at(3000)
    assert few["searched"] > 0
    assert few["compared"] > 0
    assert {name: count for name, count in many.items() if count > 1.25 * few[name]} == {}


@pytest.mark.parametrize("defence", [{}, DEFENCE])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_in_memory_changes_no_reward(lab: ModuleType, seed: int, defence: dict[str, Any]) -> None:
    """However much of it: sessions are loaded anew, or not, and one of a transaction that failed always."""
    spec = RewardSpec.model_validate(lab.SPEC.model_dump(exclude_unset=True) | {"defence": defence})
    records = lab.records_of(lab.random_events(seed, 200))
    made = []
    for shelf, fails in ((None, False), (SessionCache(), False), (SessionCache(10), False), (SessionCache(), True)):
        store, rewards = open_sqlite(Path(":memory:")), []
        for start in range(0, len(records), 5):
            if fails:
                with pytest.raises(ZeroDivisionError):
                    _fail(store, LedgerTransaction(spec, shelf), records[start : start + 5])
            book = LedgerTransaction(spec, shelf)
            with store.work() as work:
                book.take(work, records[start : start + 5])
            rewards += book.rewards
            if shelf is not None:
                shelf.put(book.sessions)
        store.close()
        made.append(rewards)
    assert made[0]
    assert made[1:] == [made[0]] * 3


def _fail(store: SqlStore, book: LedgerTransaction, records: Sequence[Any]) -> None:
    with store.work() as work:
        book.take(work, records)
        raise ZeroDivisionError


def test_the_shelf_keeps_so_many_turns_and_what_was_used_last(lab: ModuleType, events: Any) -> None:
    shelf, store = SessionCache(4), open_sqlite(Path(":memory:"))
    for name in ("a", "b", "c"):
        book = LedgerTransaction(lab.SPEC, shelf)
        with store.work() as work:
            book.take(work, lab.records_of([events.turn(name, at) for at in range(6 if name == "c" else 2)]))
        shelf.put(book.sessions)
        kept = {session_id for _, session_id in (session.key for session in shelf)}
        assert kept == ({"c"} if name == "c" else {"a", "b"} if name == "b" else {"a"})
    store.close()
