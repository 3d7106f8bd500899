"""Turns of a small policy, and their rewards, as the learner's own update takes them."""

from datetime import datetime

from core.events import Completion, LogprobSpace, Purpose, Reward, Sampling, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, SessionId, base_ref


def small_turn(
    session: str,
    index: int,
    *,
    workload: str,
    at: datetime,
    prompt: tuple[int, ...],
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...],
    version: int = 1,
    purpose: Purpose = "turn",
) -> Completion:
    """Return the turn at a place, from 0, of a session, of which each turn continues the one before."""
    return Completion(
        inference_id=InferenceId(f"{session}-{index}"),
        session_id=SessionId(session),
        turn_index=index,
        parent_id=InferenceId(f"{session}-{index - 1}") if index else None,
        group_id=GroupId(f"{session}-{index}"),
        namespace=Namespace("bench"),
        user_id=None,
        workload=workload,
        purpose=purpose,
        received_at=at,
        messages=(),
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=tokens,
        logprobs=logprobs,
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="small",
        policy_versions=(VersionSpan(start=0, end=len(tokens), version=base_ref(version)),),
        tokenizer_digest="",
        renderer="",
        finish_reason="stop",
        delivered_tokens=len(tokens),
        latency_ms=0.0,
    )


def small_reward(turn: Completion, value: float, outcome: str, at: datetime) -> Reward:
    """Return a turn's reward, all of which comes of one outcome."""
    return Reward(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        workload=turn.workload,
        revision=0,
        value=value,
        components={outcome: value},
        outcome_ids=(),
        first_outcome_at=at,
        last_outcome_at=at,
        why="",
        spec="",
        final=True,
        decided_at=at,
    )
