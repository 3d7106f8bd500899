"""On Postgres every query of the API, the console, the scorer and the release controller goes by an index."""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, event, text
from stores import database

from core.events import Completion, LogprobSpace, Outcome, PolicyVersion, Release, Reward, Sampling
from core.ids import GroupId, InferenceId, Namespace, OutcomeId, SessionId, Version
from core.ports import Store
from core.store import policies, rewards, turns
from scoring import ledger
from scoring.state import Heard, Session, SessionKey, Turn

BIG = {"turns", "outcomes", "rewards", "ledger_turns", "ledger_outcomes", "ledger_sessions", "policies", "releases"}
COUNT = 5000  # turns; a session has five
NAMESPACE = Namespace("default")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
MICROS = "1767225600000000 + n::bigint * 1000000"

# n: a turn, and what belongs to it. The waits of the last hundred run.
ROWS = {
    "turns": f"'i' || n, 's' || n / 5, 'default', n % 5, NULL, NULL, 'write', 'turn', {MICROS}, n / 10, 'stop', true, "
    "true, 'd' || n % 1000, :record",
    "outcomes": f"'default', 'o' || n, 'i' || n, NULL, 'accepted', 'c', {MICROS}, "
    "CASE WHEN n % 50 = 0 THEN 'o' || n - 1 END, false, :record",
    "rewards": f"'i' || n, 'spec', 0, 'default', 's' || n / 5, 0.5, false, {MICROS}, n, n < {COUNT} - 100, "
    ":record, n % 4",
    "ledger_turns": f"'i' || n, 's' || n / 5, 'default', 'write', 'turn', n % 5, false, n % 4, {MICROS}, "
    f"CASE WHEN n > {COUNT} - 100 THEN {MICROS} END, n <= {COUNT} - 100, 0, 0.5, {MICROS}, 0",
    "ledger_outcomes": "'default', 'o' || n, 'i' || n, CASE WHEN n % 100 > 0 THEN 's' || n / 5 END, n, :record",
    "ledger_sessions": f"'default', 's' || n, {MICROS}, NULL",
    "policies": f"n, CASE WHEN n = {COUNT} THEN 'live' WHEN n % 100 = 0 THEN 'rolled_back' ELSE 'retired' END, 'd', "
    "n - 1, 0, :record",
    "releases": "n, n, 'local', 'live', 'because', 'gate', 0",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    said, scored = msgspec.msgpack.encode(outcome(0)), msgspec.msgpack.encode(reward(0))
    records = {
        "turns": msgspec.msgpack.encode(turn(0)),
        "outcomes": said,
        "ledger_outcomes": said,
        "rewards": scored,
        "policies": msgspec.msgpack.encode(policy()),
    }
    with database("postgres", tmp_path_factory.mktemp("plans")) as home:
        store = home.open()
        with store.begin() as connection:
            for table, row in ROWS.items():
                query = text(f"INSERT INTO {table} SELECT {row} FROM generate_series(1, {COUNT}) n")
                connection.execute(query, {"record": records[table]} if ":record" in row else {})
            connection.execute(text(f"SELECT setval('releases_sequence_seq', {COUNT})"))
        with store.begin() as connection:
            connection.execute(text("ANALYZE"))
        yield store
        store.close()


def turn(number: int) -> Completion:
    return Completion(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId(f"s{number // 5}"),
        turn_index=0,
        parent_id=None,
        group_id=GroupId("g"),
        namespace=NAMESPACE,
        user_id=None,
        workload="write",
        purpose="turn",
        received_at=NOW,
        messages=(),
        sampling=Sampling(),
        prompt_token_ids=(),
        token_ids=(),
        logprobs=(),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="tiny",
        policy_versions=(),
        tokenizer_digest="t",
        renderer="r",
        finish_reason="stop",
        delivered_tokens=0,
        latency_ms=1.0,
    )


def outcome(number: int) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId(f"o{number}"),
        inference_id=InferenceId(f"i{number}"),
        session_id=None,
        namespace=NAMESPACE,
        name="accepted",
        value=True,
        observed_at=NOW,
        received_at=NOW,
    )


def reward(number: int) -> Reward:
    return Reward(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId("s"),
        namespace=NAMESPACE,
        workload="write",
        revision=1,
        value=0.5,
        components={},
        outcome_ids=(),
        first_outcome_at=None,
        last_outcome_at=None,
        why="",
        spec="spec",
        final=False,
        decided_at=NOW,
    )


def policy() -> PolicyVersion:
    return PolicyVersion(
        version=Version(7), policy="tiny", digest="d", parent=None, manifest=None, weights="w", created_at=NOW
    )


def release() -> Release:
    return Release(version=Version(7), cluster="local", state="live", why="", by="gate", at=NOW)


def ledger_turn(number: int) -> Turn:
    return Turn(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId(f"s{number // 5}"),
        namespace=NAMESPACE,
        workload="write",
        purpose="turn",
        turn_index=0,
        empty=False,
        partition=0,
        opened_at=NOW,
    )


MANY = range(1, 9)
IDS = [InferenceId(f"i{number}") for number in MANY]
KEYS = [SessionKey((NAMESPACE, SessionId(f"s{number}"))) for number in MANY]
SESSION = SessionId("s100")
DIGESTS = ["unknown", "d7"]
Uses = dict[str, Callable[[Connection], object]]
TURNS: Uses = {
    "put_turns": lambda c: turns.put_turns(c, [turn(number) for number in MANY]),
    "put_outcomes": lambda c: turns.put_outcomes(c, [outcome(number) for number in MANY]),
    "get_turns": lambda c: turns.get_turns(c, IDS),
    "get_turn": lambda c: turns.get_turn(c, NAMESPACE, IDS[0]),
    "get_session_turns": lambda c: turns.get_session_turns(c, NAMESPACE, SESSION),
    "has_session": lambda c: turns.has_session(c, NAMESPACE, SESSION),
    "find_transcript": lambda c: (
        turns.find_transcript(c, NAMESPACE, DIGESTS),
        turns.find_transcript(c, NAMESPACE, DIGESTS, SESSION),
    ),
    "get_outcome": lambda c: turns.get_outcome(c, NAMESPACE, OutcomeId("o1")),
    "get_successor": lambda c: turns.get_successor(c, NAMESPACE, OutcomeId("o49")),
    "get_turn_outcomes": lambda c: turns.get_turn_outcomes(c, IDS[:5]),
    "get_session_outcomes": lambda c: turns.get_session_outcomes(c, NAMESPACE, SESSION),
}
REWARDS: Uses = {
    "put_rewards": lambda c: rewards.put_rewards(c, [(0, reward(number)) for number in MANY]),
    "unpublished": lambda c: rewards.unpublished(c, [0, 3], 512),
    "mark_published": lambda c: rewards.mark_published(c, list(MANY)),
    "list_rewards": lambda c: rewards.list_rewards(c, NAMESPACE, 4000, 100),
    "last_sequence": lambda c: rewards.last_sequence(c, NAMESPACE),
    "get_rewards": lambda c: rewards.get_rewards(c, IDS[:5]),
}
LEDGER: Uses = {
    "count_open": lambda c: ledger.count_open(c, [0, 3]),
    "due_turns": lambda c: ledger.due_turns(c, dict.fromkeys([0, 3], NOW), 512),
    "find_sessions": lambda c: ledger.find_sessions(c, IDS),
    "load_sessions": lambda c: ledger.load_sessions(c, KEYS),
    "known_outcomes": lambda c: ledger.known_outcomes(c, [(NAMESPACE, OutcomeId(f"o{number}")) for number in MANY]),
    "early_outcomes": lambda c: ledger.early_outcomes(c, IDS),
    "save_turns": lambda c: ledger.save_turns(c, [ledger_turn(number) for number in MANY]),
    "save_sessions": lambda c: ledger.save_sessions(c, [Session(key=key, last_at=NOW) for key in KEYS]),
    "save_outcomes": lambda c: ledger.save_outcomes(c, [(Heard(outcome(number), number), SESSION) for number in MANY]),
}
POLICIES: Uses = {
    "allocate_version": lambda c: policies.allocate_version(c, NOW),
    "put_policy": lambda c: policies.put_policy(c, policy()),
    "get_policy": lambda c: policies.get_policy(c, Version(7)),
    "list_policies": lambda c: policies.list_policies(c, 100),
    "first_version": policies.first_version,
    "list_candidates": policies.list_candidates,
    "versions_in_state": lambda c: policies.versions_in_state(c, "canary"),
    "get_state": lambda c: policies.get_state(c, Version(7)),
    "put_release": lambda c: policies.put_release(c, release()),
    "live_version": lambda c: policies.live_version(c, "local"),
    "last_sequence": policies.last_sequence,
    "last_in_state": lambda c: policies.last_in_state(c, "local", "retired"),
    "list_releases": lambda c: policies.list_releases(c, 4900, 100),
}


MODULES = ((turns, TURNS), (rewards, REWARDS), (ledger, LEDGER), (policies, POLICIES))
USES = {(module, name): use for module, uses in MODULES for name, use in uses.items()}


@pytest.mark.parametrize(("module", "name"), USES, ids=lambda part: getattr(part, "__name__", part))
def test_no_query_walks_a_big_table(store: Store, module: ModuleType, name: str) -> None:
    with store.begin() as connection:
        outer = connection.begin_nested()
        statements = spied(connection, USES[module, name])
        assert statements
        for statement, parameters in statements:
            plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
            assert not walked(plan[0]["Plan"]) & BIG, (statement, plan)
        outer.rollback()


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


def walked(plan: dict[str, Any]) -> set[str]:
    """The tables that it reads from one end to the other."""
    below = [walked(part) for part in plan.get("Plans", [])]
    here = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    return here.union(*below)
