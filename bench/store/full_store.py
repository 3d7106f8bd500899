"""A full store, on either database, made by the database itself from the numbers of the turns.

A session has three turns. Each has an outcome, a reward and the scorer's rows; the waits of the youngest run, and
their rewards are still in the outbox. One of ten turns starts as many others do; one of fifty outcomes supersedes
the one before; one of a hundred is about a turn that nobody knows."""

from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, inspect, text

from core import codec
from core.events import Completion, LogprobSpace, Outcome, PolicyVersion, Reward, Sampling
from core.ids import GroupId, InferenceId, Namespace, OutcomeId, SessionId, base_ref

TURNS = 3  # of a session
PARTITIONS = 4
OPEN = 300  # turns whose waits run
COMMON = "shared"  # the digest of what many turns begin with
NAMESPACE = Namespace("default")
START = datetime(2026, 1, 1, tzinfo=UTC)  # a turn a second from here on
_BASE = 10**11  # ids are of one length, and in the order of their numbers

_AT = f"{int(START.timestamp()) * 10**6} + n * 1000000"
_INFERENCE = f"({_BASE} + n) || '-inference'"
_SESSION = f"({_BASE} + n / {TURNS}) || '-session'"
_OUTCOME = f"({_BASE} + n) || '-outcome'"
_OVER = f"n < :turns - {OPEN}"

_ROWS: dict[str, dict[str, str]] = {  # n: a turn, from 0; or a session, or a version
    "turns": {
        "inference_id": _INFERENCE,
        "session_id": _SESSION,
        "namespace": ":namespace",
        "turn_index": f"n % {TURNS}",
        "workload": "'write'",
        "purpose": "'turn'",
        "received_at": _AT,
        "policy_version": "n / 100",
        "finish_reason": "'stop'",
        "trainable": "true",
        "learn": "true",
        "transcript_digest": f"CASE WHEN n % 10 = 0 THEN '{COMMON}' ELSE 'digest-' || n END",
        "record": ":turn",
    },
    "outcomes": {
        "namespace": ":namespace",
        "outcome_id": _OUTCOME,
        "inference_id": _INFERENCE,
        "name": "'accepted'",
        "content_digest": "'c'",
        "received_at": _AT,
        "supersedes": f"CASE WHEN n % 50 = 49 THEN ({_BASE} + n - 1) || '-outcome' END",
        "withdrawn": "false",
        "record": ":outcome",
    },
    "rewards": {
        "inference_id": _INFERENCE,
        "spec": "'spec'",
        "revision": "0",
        "namespace": ":namespace",
        "session_id": _SESSION,
        "value": "0.5",
        "final": "true",
        "decided_at": _AT,
        "sequence": "n + 1",
        "published": _OVER,
        "record": ":reward",
        "partition": f"n % {PARTITIONS}",
    },
    "ledger_turns": {
        "inference_id": _INFERENCE,
        "session_id": _SESSION,
        "namespace": ":namespace",
        "workload": "'write'",
        "purpose": "'turn'",
        "turn_index": f"n % {TURNS}",
        "empty": "false",
        "partition": f"n % {PARTITIONS}",
        "opened_at": _AT,
        "due_at": f"CASE WHEN {_OVER} THEN NULL ELSE {_AT} END",
        "closed": _OVER,
        "revision": "0",
        "value": "0.5",
        "decided_at": _AT,
        "seen_offset": "0",
    },
    "ledger_outcomes": {
        "namespace": ":namespace",
        "outcome_id": _OUTCOME,
        "inference_id": _INFERENCE,
        "session_id": f"CASE WHEN n % 100 < 99 THEN {_SESSION} END",
        "log_offset": "n",
        "record": ":outcome",
    },
    "ledger_sessions": {"namespace": ":namespace", "session_id": f"({_BASE} + n) || '-session'", "last_at": _AT},
    "policies": {
        "version": "n + 1",
        "state": "CASE WHEN n + 1 = :versions THEN 'live' WHEN n % 100 = 0 THEN 'rolled_back' ELSE 'retired' END",
        "digest": "'d'",
        "parent": "n",
        "created_at": "0",
        "record": ":policy",
    },
    "releases": {
        "sequence": "n + 1",
        "version": "n + 1",
        "cluster": "'local'",
        "state": "'live'",
        "why": "'because'",
        "by": "'gate'",
        "at": "0",
    },
}
_INSERT = """
WITH RECURSIVE numbers(n) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)
INSERT INTO {} ({}) SELECT {} FROM numbers
"""


def inference_id(number: int) -> InferenceId:
    return InferenceId(f"{_BASE + number}-inference")


def session_id(number: int) -> SessionId:
    return SessionId(f"{_BASE + number}-session")


def outcome_id(number: int) -> OutcomeId:
    return OutcomeId(f"{_BASE + number}-outcome")


def fill(connection: Connection, sessions: int, versions: int) -> None:
    """Fill empty tables of any revision, leaving out columns that a table does not have."""
    turns = sessions * TURNS
    counts = {"ledger_sessions": sessions, "policies": versions, "releases": versions}
    events = {"turn": turn(0), "outcome": outcome(0), "reward": reward(0), "policy": policy()}
    values = {"namespace": NAMESPACE, "turns": turns, "versions": versions}
    values |= {name: msgspec.msgpack.encode(event, enc_hook=codec.plain) for name, event in events.items()}
    inspector = inspect(connection)
    for table, columns in _ROWS.items():
        there = {column["name"] for column in inspector.get_columns(table)}
        filled = {name: expression for name, expression in columns.items() if name in there}
        query = text(_INSERT.format(table, ", ".join(f'"{name}"' for name in filled), ", ".join(filled.values())))
        last = counts.get(table, turns) - 1
        wanted = query.compile().params
        connection.execute(query, {name: value for name, value in {"last": last, **values}.items() if name in wanted})
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT setval('releases_sequence_seq', :versions)"), {"versions": versions})


def turn(number: int) -> Completion:
    """Return a turn without content, of about half a kilobyte."""
    return Completion(
        inference_id=inference_id(number),
        session_id=session_id(number // TURNS),
        turn_index=number % TURNS,
        parent_id=None,
        group_id=GroupId("g"),
        namespace=NAMESPACE,
        user_id=None,
        workload="write",
        purpose="turn",
        received_at=START,
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
        outcome_id=outcome_id(number),
        inference_id=inference_id(number),
        session_id=None,
        namespace=NAMESPACE,
        name="accepted",
        value=True,
        observed_at=START,
        received_at=START,
    )


def reward(number: int, revision: int = 0) -> Reward:
    return Reward(
        inference_id=inference_id(number),
        session_id=session_id(number // TURNS),
        namespace=NAMESPACE,
        workload="write",
        revision=revision,
        value=0.5,
        components={"accepted": 0.5},
        outcome_ids=(outcome_id(number),),
        first_outcome_at=START,
        last_outcome_at=START,
        why="accepted",
        spec="spec",
        final=True,
        decided_at=START,
    )


def policy() -> PolicyVersion:
    return PolicyVersion(
        version=base_ref(7), policy="tiny", digest="d", parent=None, manifest=None, weights="w", created_at=START
    )
