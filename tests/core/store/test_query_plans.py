"""Every query of the API, the console, the scorer and the release controller uses an index on both databases."""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
from core.ids import UserHash, base_ref
from core.operations.audit import Deed
from core.operations.consents import UNSAID, ConsentSubject, KeptConsent
from core.operations.ledger import Facts, Heard, LedgerEntry, SessionKey, SessionRow
from core.operations.quotas import Account, Use
from core.store import SqlStore, open_sqlite
from core.store.turns import Maker
from core.store.work import Work
from scoring.rewards.state import open_turn

BIG = {"turns", "outcomes", "rewards", "ledger_turns", "ledger_outcomes", "ledger_sessions", "policies", "releases"}
BIG |= {"audit", "spending", "consents"}
SESSIONS = 1500
VERSIONS = 5000
DEED = Deed(at=START, by="ada", kind="read", what="GET /v1/sessions", namespace=NAMESPACE)


@pytest.fixture(scope="module", params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    with database(request.param, tmp_path_factory.mktemp("plans")) as home:
        store = home.open()
        with store.begin() as connection:
            fill(connection, SESSIONS, VERSIONS)
            Work(connection).audit.append([DEED] * VERSIONS)
            Work(connection).spending.add("2026-01", {account(number): Use(1, number) for number in range(VERSIONS)})
            for number in range(VERSIONS):
                Work(connection).consents.put(subject(number), UNSAID, takes_back=number == 7)
            if request.param == "postgres":
                connection.execute(text("ANALYZE"))
        yield store
        store.close()


def account(number: int) -> Account:
    return Account("user", f"n{number % 100}", f"u{number}")


def subject(number: int) -> ConsentSubject:
    return ConsentSubject(NAMESPACE, "user" if number % 2 else "session", f"s{number}")


def release() -> Release:
    return Release(version=base_ref(7), cluster="local", state="live", why="", by="gate", at=START)


def ledger_turn(number: int) -> LedgerEntry:
    return open_turn(turn(number), 0, Facts())


NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=10)
MANY = range(1, 9)
IDS = [inference_id(number) for number in MANY]
KEYS = [SessionKey((NAMESPACE, session_id(number))) for number in MANY]
SESSION = session_id(100)
DIGESTS = ["unknown", "digest-7"]
USES: dict[str, Callable[[Any], object]] = {
    "turns.put": lambda work: work.turns.put([turn(number) for number in MANY]),
    "outcomes.put": lambda work: work.outcomes.put([outcome(number) for number in MANY]),
    "turns.get_many": lambda view: view.turns.get_many(IDS),
    "turns.newest_texts": lambda view: view.turns.newest_texts(4),
    "turns.get": lambda view: view.turns.get(NAMESPACE, IDS[0]),
    "turns.said_since": lambda view: view.turns.said_since(NAMESPACE, NOW - timedelta(hours=1), 4),
    "turns.said_since a key": lambda view: view.turns.said_since(NAMESPACE, LONG_AGO, 4, Maker(None, "k")),
    "turns.said_since a user": lambda view: view.turns.said_since(NAMESPACE, LONG_AGO, 4, Maker(UserHash("u"), "k")),
    "turns.made_since": lambda view: view.turns.made_since(NAMESPACE, SESSION, NOW - timedelta(days=10), 4),
    "turns.sessions_among": lambda view: view.turns.sessions_among(NAMESPACE, [session_id(number) for number in MANY]),
    "turns.which_of": lambda view: view.turns.which_of(NAMESPACE, IDS),
    "turns.of_session": lambda view: view.turns.of_session(NAMESPACE, SESSION),
    "turns.newest_of_session": lambda view: view.turns.newest_of_session(NAMESPACE, SESSION, 4, 1 << 20),
    "turns.parents": lambda view: view.turns.parents(NAMESPACE, SESSION),
    "turns.following": lambda view: view.turns.following(turn(100)),
    "turns.has_others": lambda view: view.turns.has_others(NAMESPACE, SESSION, UserHash("u")),
    "turns.has_session": lambda view: view.turns.has_session(NAMESPACE, SESSION),
    "turns.find_transcript": lambda view: (
        view.turns.find_transcript(NAMESPACE, DIGESTS),
        view.turns.find_transcript(NAMESPACE, DIGESTS, SESSION),
    ),
    "outcomes.get": lambda view: view.outcomes.get(NAMESPACE, outcome_id(1)),
    "outcomes.which_of": lambda view: view.outcomes.which_of(NAMESPACE, [outcome_id(number) for number in MANY]),
    "outcomes.successor": lambda view: view.outcomes.successor(NAMESPACE, outcome_id(48)),
    "outcomes.withdrawal_before": lambda view: view.outcomes.withdrawal_before(NAMESPACE, outcome_id(48)),
    "outcomes.of_turns": lambda view: view.outcomes.of_turns(IDS[:5]),
    "outcomes.of_session": lambda view: view.outcomes.of_session(NAMESPACE, SESSION),
    "outcomes.newest_of_turns": lambda view: view.outcomes.newest_of_turns(NAMESPACE, IDS[:5], 4, 1 << 20),
    "outcomes.newest_of_session": lambda view: view.outcomes.newest_of_session(NAMESPACE, SESSION, 4, 1 << 20),
    "rewards.put": lambda work: work.rewards.put([(0, reward(number, 1)) for number in MANY]),
    "rewards.unpublished": lambda view: view.rewards.unpublished([0, 3], 512),
    "rewards.mark_published": lambda work: work.rewards.mark_published(list(MANY)),
    "rewards.after": lambda view: view.rewards.after(NAMESPACE, 4000, 100),
    "rewards.latest": lambda view: view.rewards.latest(NAMESPACE, 4000, 100),
    "rewards.last_sequence": lambda view: view.rewards.last_sequence(NAMESPACE),
    "rewards.of_turns": lambda view: view.rewards.of_turns(IDS[:5]),
    "rewards.newest_of_turns": lambda view: view.rewards.newest_of_turns(IDS[:5], 4, 1 << 20),
    "ledger.count_open": lambda view: view.ledger.count_open([0, 3]),
    "ledger.due_turns": lambda view: view.ledger.due_turns(dict.fromkeys([0, 3], START), 512),
    "ledger.sessions_of": lambda view: view.ledger.sessions_of(IDS),
    "ledger.sessions": lambda view: list(view.ledger.sessions(NAMESPACE, [session for _, session in KEYS])),
    "ledger.turns": lambda view: list(view.ledger.turns(NAMESPACE, [session for _, session in KEYS])),
    "ledger.outcomes": lambda view: list(view.ledger.outcomes(NAMESPACE, [session for _, session in KEYS])),
    "ledger.known_outcomes": lambda view: view.ledger.known_outcomes(
        [(NAMESPACE, outcome_id(number)) for number in MANY]
    ),
    "ledger.early_outcomes": lambda view: view.ledger.early_outcomes(IDS),
    "ledger.waiting_outcomes": lambda view: view.ledger.waiting_outcomes(),
    "ledger.forget_outcomes": lambda work: work.ledger.forget_outcomes([outcome(number) for number in MANY]),
    "ledger.put_turns": lambda work: work.ledger.put_turns([ledger_turn(number) for number in MANY]),
    "ledger.put_sessions": lambda work: work.ledger.put_sessions(
        [SessionRow(key=key, last_at=START, ended_at=None) for key in KEYS]
    ),
    "ledger.put_outcomes": lambda work: work.ledger.put_outcomes(
        [(Heard(outcome(number), number), SESSION) for number in MANY]
    ),
    "curves.worth": lambda view: view.curves.worth(NAMESPACE, 100),
    "curves.first_worth": lambda view: view.curves.first_worth(NAMESPACE, 100, before=NOW),
    "curves.first_rewarded": lambda view: view.curves.first_rewarded(base_ref(1), 100),
    "curves.conduct": lambda view: view.curves.conduct(NAMESPACE, 100),
    "curves.deeds": lambda view: view.curves.deeds(NAMESPACE, 100),
    "curves.oldest_deeds": lambda view: view.curves.oldest_deeds(NAMESPACE, 100),
    "curves.live_since": lambda view: view.curves.live_since(4900),
    "curves.oldest": lambda view: view.curves.oldest(NAMESPACE, 100),
    "curves.arms": lambda view: view.curves.arms(IDS),
    "recent.glances": lambda view: (
        view.recent.glances(NAMESPACE, None, 100),
        view.recent.glances(NAMESPACE, inference_id(400), 100),
    ),
    "recent.served": lambda view: view.recent.served(NAMESPACE, 100),
    "recent.of_sessions": lambda view: view.recent.of_sessions(NAMESPACE, [session for _, session in KEYS], 1000),
    "recent.sessions_named": lambda view: view.recent.sessions_named(NAMESPACE, SESSION[:-3], 50),
    "recent.heard": lambda view: view.recent.heard(NAMESPACE, IDS, [session for _, session in KEYS]),
    "recent.worth": lambda view: view.recent.worth(IDS),
    "files.kept": lambda view: view.files.kept(),
    "files.is_kept": lambda view: view.files.is_kept(base_ref(7)),
    "files.servable": lambda view: view.files.servable([base_ref(number) for number in MANY]),
    "files.wanted": lambda view: view.files.wanted(),
    "files.keep": lambda work: work.files.keep(base_ref(7), 1),
    "files.find": lambda work: work.files.find(base_ref(7)),
    "files.drop": lambda work: work.files.drop(base_ref(7)),
    "files.want": lambda work: work.files.want(base_ref(7)),
    "files.want_no_more": lambda work: work.files.want_no_more(base_ref(7)),
    "files.give_up": lambda work: work.files.give_up(base_ref(7), "x"),
    "files.try_again": lambda work: work.files.try_again(),
    "files.put_checkpoints": lambda work: work.files.put_checkpoints([base_ref(7)]),
    "policies.allocate": lambda work: work.policies.allocate(START),
    "policies.put": lambda work: work.policies.put(policy()),
    "policies.put_verdict": lambda work: work.policies.put_verdict(base_ref(7), GateVerdict(action="hold", why="x")),
    "policies.get": lambda view: view.policies.get(base_ref(7)),
    "policies.newest": lambda view: view.policies.newest(100),
    "policies.first": lambda view: view.policies.first(),
    "policies.candidates": lambda view: view.policies.candidates(),
    "policies.in_state": lambda view: view.policies.in_state("canary"),
    "policies.allocated": lambda view: view.policies.allocated(START),
    "policies.state_of": lambda view: view.policies.state_of(base_ref(7)),
    "policies.states_of": lambda view: view.policies.states_of([base_ref(3), base_ref(7)]),
    "releases.put": lambda work: work.releases.put(release()),
    "releases.live": lambda view: view.releases.live("local"),
    "releases.live_since": lambda view: view.releases.live_since("local"),
    "releases.went_live": lambda view: view.releases.went_live("local", 20),
    "releases.last_sequence": lambda view: view.releases.last_sequence(),
    "releases.last_in_state": lambda view: view.releases.last_in_state("local", "retired"),
    "audit.head": lambda view: view.audit.head(),
    "audit.digest_of": lambda view: view.audit.digest_of(7),
    "audit.newest": lambda view: (view.audit.newest(None, 4000, 100), view.audit.newest(NAMESPACE, 4000, 100)),
    "audit.append": lambda work: work.audit.append([DEED]),
    "spending.of_accounts": lambda view: view.spending.of_accounts("2026-01", [account(7), account(8)]),
    "spending.of_namespace": lambda view: view.spending.of_namespace("2026-01", "n7", 100),
    "spending.add": lambda work: work.spending.add("2026-01", {account(7): Use(1, 1)}),
    "consents.revision": lambda view: view.consents.revision(),
    "consents.of": lambda view: view.consents.of([subject(7), subject(8)]),
    "consents.changed_since": lambda view: view.consents.changed_since(4900, 100),
    "consents.to_take_back": lambda view: view.consents.to_take_back(4, 100),
    "consents.still_to_take_back": lambda view: view.consents.still_to_take_back([8, 9]),
    "consents.heeded": lambda view: view.consents.heeded({each.inference_id: each for each in map(turn, MANY)}),
    "consents.put": lambda work: work.consents.put(subject(7), UNSAID, takes_back=False),
    "consents.taken_back": lambda work: work.consents.taken_back(
        [KeptConsent(subject=subject(7), consent=UNSAID, revision=8)]
    ),
    "turns.teaching of a user": lambda view: view.turns.teaching(
        ConsentSubject(NAMESPACE, "user", "u"), NOW, IDS[0], 100
    ),
    "turns.teaching of a session": lambda view: view.turns.teaching(
        ConsentSubject(NAMESPACE, "session", SESSION), NOW, None, 100
    ),
    "releases.after": lambda view: view.releases.after(4900, 100),
}


@pytest.mark.parametrize("name", USES)
def test_no_query_walks_a_big_table(store: SqlStore, name: str) -> None:
    with store.begin() as connection:
        outer = connection.begin_nested()
        statements = spied(connection, USES[name])
        assert statements
        for statement, parameters in statements:
            assert not walked(connection, statement, parameters) & BIG or name in IN_ORDER, statement
        outer.rollback()


def test_a_sessions_turns_are_read_without_those_of_others(store: SqlStore) -> None:
    """Of a time long ago, too: the index by time would lead through all that the namespace has had since."""
    assert "turns_by_session" in plan_of(store, "turns.made_since")


@pytest.mark.parametrize("maker", ["key", "user"])
def test_a_makers_turns_are_read_without_those_of_others(store: SqlStore, maker: str) -> None:
    """An event says itself when it happened, which may be long ago."""
    assert f"turns_by_{maker}" in plan_of(store, f"turns.said_since a {maker}")


def plan_of(store: SqlStore, name: str) -> str:
    """Return how the first query goes about it; never by time."""
    with store.begin() as connection:
        (query, parameters), *_ = spied(connection, USES[name])
        prefix = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
        steps = connection.exec_driver_sql(f"{prefix} {query}", parameters).all()
    plan = " ".join(map(str, steps))
    assert "turns_by_time" not in plan, plan
    return plan


IN_ORDER = {
    "audit.append",
    "audit.head",
    "audit.newest",
    "consents.to_take_back",
    "curves.first_rewarded",
    "policies.newest",
    "turns.newest_texts",
}
"""Queries that read from one end of the keys up to a limit, which SQLite calls a scan."""

WHOLE = {
    "audit.in_order",
    "consents.hold",
    *("ledger.is_empty", "outcomes.of_judged_turns", "policies.allocate_anchor", "policies.count_states"),
    *("policies.states_of_lineage", "policies.versions", "releases.live_history", "releases.lock"),
    *("rewards.in_order", "turns.count", "turns.sessions"),
}
"""At a start, for a history read from end to end, and of all versions at once, by nature; a lock asks for no row."""
SMALL = {
    "alarms",
    "archived",
    "dead_letters",
    "exclusions",
    "experiments",
    "fleet",
    "leases",
    "offsets",
    "orders",
    "references",
}
SMALL |= {"keys", "told"}
"""Repositories of tables that stay small."""


def test_no_query_is_left_out() -> None:
    with open_sqlite(Path(":memory:")).work() as work:
        repositories = {name: kind for name, kind in vars(work).items() if name not in SMALL}
    public = {
        f"{name}.{method}"
        for name, repository in repositories.items()
        for method, _ in inspect.getmembers(repository, inspect.ismethod)
        if not method.startswith("_")
    }
    assert public - WHOLE == {use.partition(" ")[0] for use in USES}  # some are asked in several ways


def spied(connection: Connection, use: Callable[[Work], object]) -> list[tuple[str, Any]]:
    """Return the statements that `use` sends, each with its first parameters."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        use(Work(connection))
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return [entry for entry in sent if entry[0].split()[0] in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")]


def walked(connection: Connection, statement: str, parameters: Any) -> set[str]:
    """Return the tables that the statement scans from end to end."""
    if connection.dialect.name == "postgresql":
        plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
        return walked_in(plan[0]["Plan"])
    steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).scalars("detail")
    return {step.split()[1] for step in steps if step.startswith("SCAN ")}


def walked_in(plan: dict[str, Any]) -> set[str]:
    below = [walked_in(part) for part in plan.get("Plans", [])]
    here = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    return here.union(*below)
