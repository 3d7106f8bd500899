"""Events to write, and a log and a store to write them to."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.events import Completion, LogprobSpace, Outcome, Sampling, VersionSpan
from core.ids import (
    GroupId,
    InferenceId,
    Namespace,
    SessionId,
    Version,
    new_group_id,
    new_inference_id,
    new_outcome_id,
    new_session_id,
)
from core.store import SqlStore, open_sqlite
from ingest.sqlite_log import SqliteEventLog

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)


def _completion(session_id: SessionId | None = None, inference_id: InferenceId | None = None) -> Completion:
    session_id = session_id or new_session_id()
    return Completion(
        inference_id=inference_id or new_inference_id(session_id),
        session_id=session_id,
        turn_index=0,
        parent_id=None,
        group_id=GroupId(new_group_id()),
        namespace=Namespace("default"),
        user_id=None,
        workload="write",
        purpose="turn",
        received_at=NOW,
        messages=({"role": "user", "content": "[repo] write größe(x): Größe von x"},),
        sampling=Sampling(),
        prompt_token_ids=(1, 2, 3),
        token_ids=(4, 5),
        logprobs=(-0.1, -2.5),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="tiny",
        policy_versions=(VersionSpan(start=0, end=2, version=Version(3)),),
        tokenizer_digest="t",
        renderer="r",
        finish_reason="stop",
        delivered_tokens=2,
        latency_ms=12.5,
    )


def _outcome(turn: Completion) -> Outcome:
    return Outcome(
        outcome_id=new_outcome_id(),
        inference_id=turn.inference_id,
        session_id=None,
        namespace=turn.namespace,
        name="accepted",
        value=True,
        observed_at=NOW,
        received_at=NOW,
    )


@pytest.fixture
def completion() -> Callable[..., Completion]:
    return _completion


@pytest.fixture
def outcome() -> Callable[[Completion], Outcome]:
    return _outcome


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteEventLog]:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    yield log
    log.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_sqlite(tmp_path / "store.db")
    yield store
    store.close()
