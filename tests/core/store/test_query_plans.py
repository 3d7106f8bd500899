"""On either database every query of the API, the console, the scorer and the release controller goes by an index."""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from stores import KINDS, database

from bench.store.full_store import (
    NAMESPACE,
    START,
    fill,
    inference_id,
    outcome,
    outcome_id,
    policy,
    reward,
    session_id,
    turn,
)
from core.events import GateVerdict, Release
from core.ids import UserHash, Version
from core.ports import Store
from core.store import curves, policies, rewards, turns
from scoring.ledger import rows as ledger
from scoring.rewards.facts import Facts
from scoring.rewards.state import Heard, Session, SessionKey, Turn, open_turn

BIG = {"turns", "outcomes", "rewards", "ledger_turns", "ledger_outcomes", "ledger_sessions", "policies", "releases"}
SESSIONS = 1500
VERSIONS = 5000


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with database(request.param, tmp_path_factory.mktemp("plans")) as home:
        store = home.open()
        with store.begin() as connection:
            fill(connection, SESSIONS, VERSIONS)
            if request.param == "postgres":
                connection.execute(text("ANALYZE"))
        yield store
        store.close()


def release() -> Release:
    return Release(version=Version(7), cluster="local", state="live", why="", by="gate", at=START)


def ledger_turn(number: int) -> Turn:
    return open_turn(turn(number), 0, Facts())


MANY = range(1, 9)
IDS = [inference_id(number) for number in MANY]
KEYS = [SessionKey((NAMESPACE, session_id(number))) for number in MANY]
SESSION = session_id(100)
DIGESTS = ["unknown", "digest-7"]
Uses = dict[str, Callable[[Connection], object]]
TURNS: Uses = {
    "put_turns": lambda c: turns.put_turns(c, [turn(number) for number in MANY]),
    "put_outcomes": lambda c: turns.put_outcomes(c, [outcome(number) for number in MANY]),
    "get_turns": lambda c: turns.get_turns(c, IDS),
    "newest_texts": lambda c: turns.newest_texts(c, 4),
    "get_turn": lambda c: turns.get_turn(c, NAMESPACE, IDS[0]),
    "get_session_turns": lambda c: turns.get_session_turns(c, NAMESPACE, SESSION),
    "has_others": lambda c: turns.has_others(c, NAMESPACE, SESSION, UserHash("u")),
    "has_session": lambda c: turns.has_session(c, NAMESPACE, SESSION),
    "find_transcript": lambda c: (
        turns.find_transcript(c, NAMESPACE, DIGESTS),
        turns.find_transcript(c, NAMESPACE, DIGESTS, SESSION),
    ),
    "get_outcome": lambda c: turns.get_outcome(c, NAMESPACE, outcome_id(1)),
    "get_successor": lambda c: turns.get_successor(c, NAMESPACE, outcome_id(48)),
    "get_turn_outcomes": lambda c: turns.get_turn_outcomes(c, IDS[:5]),
    "get_session_outcomes": lambda c: turns.get_session_outcomes(c, NAMESPACE, SESSION),
}
REWARDS: Uses = {
    "put_rewards": lambda c: rewards.put_rewards(c, [(0, reward(number, 1)) for number in MANY]),
    "unpublished": lambda c: rewards.unpublished(c, [0, 3], 512),
    "mark_published": lambda c: rewards.mark_published(c, list(MANY)),
    "list_rewards": lambda c: rewards.list_rewards(c, NAMESPACE, 4000, 100),
    "latest_rewards": lambda c: rewards.latest_rewards(c, NAMESPACE, 4000, 100),
    "last_sequence": lambda c: rewards.last_sequence(c, NAMESPACE),
    "get_rewards": lambda c: rewards.get_rewards(c, IDS[:5]),
}
LEDGER: Uses = {
    "count_open": lambda c: ledger.count_open(c, [0, 3]),
    "due_turns": lambda c: ledger.due_turns(c, dict.fromkeys([0, 3], START), 512),
    "find_sessions": lambda c: ledger.find_sessions(c, IDS),
    "load_sessions": lambda c: ledger.load_sessions(c, KEYS),
    "known_outcomes": lambda c: ledger.known_outcomes(c, [(NAMESPACE, outcome_id(number)) for number in MANY]),
    "early_outcomes": lambda c: ledger.early_outcomes(c, IDS),
    "waiting_outcomes": ledger.waiting_outcomes,
    "forget_outcomes": lambda c: ledger.forget_outcomes(c, [outcome(number) for number in MANY]),
    "save_turns": lambda c: ledger.save_turns(c, [ledger_turn(number) for number in MANY]),
    "save_sessions": lambda c: ledger.save_sessions(c, [Session(key=key, last_at=START) for key in KEYS]),
    "save_outcomes": lambda c: ledger.save_outcomes(c, [(Heard(outcome(number), number), SESSION) for number in MANY]),
}
CURVES: Uses = {
    "recent_worth": lambda c: curves.recent_worth(c, NAMESPACE, 100),
    "recent_conduct": lambda c: curves.recent_conduct(c, NAMESPACE, 100),
    "live_since": lambda c: curves.live_since(c, 4900),
}
POLICIES: Uses = {
    "allocate_version": lambda c: policies.allocate_version(c, START),
    "put_policy": lambda c: policies.put_policy(c, policy()),
    "put_verdict": lambda c: policies.put_verdict(c, Version(7), GateVerdict(action="hold", why="x")),
    "get_policy": lambda c: policies.get_policy(c, Version(7)),
    "list_policies": lambda c: policies.list_policies(c, 100),
    "first_version": policies.first_version,
    "list_candidates": policies.list_candidates,
    "versions_in_state": lambda c: policies.versions_in_state(c, "canary"),
    "get_state": lambda c: policies.get_state(c, Version(7)),
    "put_release": lambda c: policies.put_release(c, release()),
    "live_version": lambda c: policies.live_version(c, "local"),
    "live_since": lambda c: policies.live_since(c, "local"),
    "last_sequence": policies.last_sequence,
    "last_in_state": lambda c: policies.last_in_state(c, "local", "retired"),
    "list_releases": lambda c: policies.list_releases(c, 4900, 100),
}


MODULES = ((turns, TURNS), (rewards, REWARDS), (ledger, LEDGER), (curves, CURVES), (policies, POLICIES))
USES = {(module, name): use for module, uses in MODULES for name, use in uses.items()}


@pytest.mark.parametrize(("module", "name"), USES, ids=lambda part: getattr(part, "__name__", part))
def test_no_query_walks_a_big_table(store: Store, module: ModuleType, name: str) -> None:
    with store.begin() as connection:
        outer = connection.begin_nested()
        statements = spied(connection, USES[module, name])
        assert statements
        for statement, parameters in statements:
            assert not walked(connection, statement, parameters) & BIG or name in IN_ORDER, statement
        outer.rollback()


IN_ORDER = {"list_policies", "newest_texts"}
"""From the highest key down to the limit, which SQLite calls a scan."""

ELSEWHERE = {"outcome_digest", "is_empty"}
"""Asks nothing, and for scoring a log anew."""
ELSEWHERE |= {"allocate_anchor", "lock_releases", "count_states", "list_versions", "states_of_lineage", "live_history"}
"""At a start; and of all versions at once, by nature."""


@pytest.mark.parametrize(("module", "uses"), MODULES)
def test_no_query_is_left_out(module: ModuleType, uses: Uses) -> None:
    public = {
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public - ELSEWHERE == set(uses)


def spied(connection: Connection, use: Callable[[Connection], object]) -> list[tuple[str, Any]]:
    """What `use` sends: each statement with the first of its parameters."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        use(connection)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return [entry for entry in sent if entry[0].split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE")]


def walked(connection: Connection, statement: str, parameters: Any) -> set[str]:
    """The tables that it reads from one end to the other."""
    if connection.dialect.name == "postgresql":
        plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
        return walked_in(plan[0]["Plan"])
    steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).scalars("detail")
    return {step.split()[1] for step in steps if step.startswith("SCAN ")}


def walked_in(plan: dict[str, Any]) -> set[str]:
    below = [walked_in(part) for part in plan.get("Plans", [])]
    here = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    return here.union(*below)
