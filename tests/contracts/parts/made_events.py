"""Complete turns, outcomes, rewards, policies and alarms, with the fields that a test changes."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from core.events import (
    Completion,
    LogprobSpace,
    Outcome,
    PolicyVersion,
    Reward,
    Sampling,
    SessionEnded,
    VersionSpan,
)
from core.ids import (
    InferenceId,
    Namespace,
    OutcomeId,
    PolicyRef,
    SessionId,
    base_ref,
    new_group_id,
    new_inference_id,
    new_outcome_id,
    new_session_id,
)
from core.operations.alarms import RELEASE, Opening

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)


def completion(session_id: SessionId | None = None, **changes: Any) -> Completion:
    session_id = session_id or new_session_id()
    turn = Completion(
        inference_id=new_inference_id(session_id),
        session_id=session_id,
        turn_index=0,
        parent_id=None,
        group_id=new_group_id(),
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
        policy_versions=(VersionSpan(start=0, end=2, version=base_ref(3)),),
        tokenizer_digest="t",
        renderer="r",
        finish_reason="stop",
        delivered_tokens=2,
        latency_ms=12.5,
    )
    return msgspec.structs.replace(turn, **changes)


def outcome(turn: Completion, **changes: Any) -> Outcome:
    said = Outcome(
        outcome_id=new_outcome_id(),
        inference_id=turn.inference_id,
        session_id=None,
        namespace=turn.namespace,
        name="accepted",
        value=True,
        observed_at=NOW,
        received_at=NOW,
    )
    return msgspec.structs.replace(said, **changes)


def reward(inference_id: str, **changes: Any) -> Reward:
    made = Reward(
        inference_id=InferenceId(inference_id),
        session_id=SessionId("s"),
        namespace=Namespace("default"),
        workload="write",
        revision=0,
        value=0.5,
        components={},
        outcome_ids=(),
        first_outcome_at=None,
        last_outcome_at=None,
        why="accepted",
        spec="spec",
        final=False,
        decided_at=NOW,
    )
    return msgspec.structs.replace(made, **changes)


def reward_of(turn: Completion, value: float, at: datetime, **changes: Any) -> Reward:
    """Return a final reward of a turn, from one outcome that arrived when it was decided."""
    usual: dict[str, Any] = {
        "session_id": turn.session_id,
        "namespace": turn.namespace,
        "workload": turn.workload,
        "value": value,
        "components": {"accepted": value},
        "outcome_ids": (OutcomeId("o"),),
        "first_outcome_at": at,
        "last_outcome_at": at,
        "final": True,
        "decided_at": at,
    }
    return reward(turn.inference_id, **(usual | changes))


def policy(version: PolicyRef, **changes: Any) -> PolicyVersion:
    made = PolicyVersion(
        version=version, policy="tiny", digest="d", parent=None, manifest=None, weights="w", created_at=NOW
    )
    return msgspec.structs.replace(made, **changes)


def ended(session: object, **changes: Any) -> SessionEnded:
    made = SessionEnded(session_id=SessionId(str(session)), namespace=Namespace("n"), received_at=NOW)
    return msgspec.structs.replace(made, **changes)


def opening(alarm_id: str, **changes: Any) -> Opening:
    """Return an alarm's opening for a workload of its own, since a monitor has one open alarm per workload."""
    found = Opening(
        alarm_id=alarm_id,
        monitor="questions",
        meaning="Questions instead of risky edits.",
        severity="critical",
        namespace=Namespace("default"),
        workload=alarm_id,
        figures={"recent": 0.5, "reference": 0.125},
        holds=(RELEASE,),
        opened_at=NOW,
        window_start=NOW,
        window_end=NOW,
    )
    return msgspec.structs.replace(found, **changes)
