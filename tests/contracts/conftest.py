"""Events to store."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from core.events import Completion, LogprobSpace, Outcome, Sampling
from core.ids import Namespace, new_group_id, new_inference_id, new_outcome_id, new_session_id

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)


@pytest.fixture
def completion() -> Callable[..., Completion]:
    def make(**changes: Any) -> Completion:
        session_id = changes.get("session_id") or new_session_id()
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
            messages=({"role": "user", "content": "größe"},),
            sampling=Sampling(),
            prompt_token_ids=(1, 2),
            token_ids=(3,),
            logprobs=(-0.5,),
            logprob_space=LogprobSpace(temperature=1.0),
            trainable=True,
            policy="tiny",
            policy_versions=(),
            tokenizer_digest="t",
            renderer="r",
            finish_reason="stop",
            delivered_tokens=1,
            latency_ms=1.0,
        )
        return msgspec.structs.replace(turn, **changes)

    return make


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    def make(turn: Completion, **changes: Any) -> Outcome:
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

    return make
