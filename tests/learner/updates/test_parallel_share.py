"""Where a second of tools costs, the policy comes to call them together, though tokens and success are the same."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import torch
from made_events import reward_of

from bench.learning.feedback_loop import settings_for
from bench.learning.feedback_world import CHOICES, CONTEXTS
from bench.learning.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from core.events import Completion, LogprobSpace, Sampling, Segment, ToolCall, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, SessionId, base_ref
from core.operations.ledger import Facts, Turn
from core.reward_spec import RewardSpec
from learner.sequences.scored import ScoredTurn
from learner.updates.state import LearnerState
from learner.updates.update import update
from scoring.rewards.conduct import effort_of
from scoring.rewards.facts import facts_of

START = datetime(2026, 1, 1, tzinfo=UTC)
CALLS = 3
TOOK_S = 2.0
TOGETHER = 0  # the choice that runs the calls at once; the others run them one after another
SUCCEEDS = 0.7
STEPS, SESSIONS = 40, 32


def spec_of(second: float) -> RewardSpec:
    outcome = {"type": "boolean", "weight": 1.0}
    effort = {"coefficient": 0.05, "k": 0.0, "call": 0, "parallel_call": 0, "second": second}
    return RewardSpec.model_validate({"outcomes": {"accepted": outcome}, "effort": effort})


def results(choice: int) -> list[dict[str, Any]]:
    found = []
    for place in range(CALLS):
        began = START + timedelta(seconds=0 if choice == TOGETHER else TOOK_S * place)
        onward = {"started_at": began.isoformat(), "ended_at": (began + timedelta(seconds=TOOK_S)).isoformat()}
        found.append({"role": "tool", "tool_call_id": f"call-{place}", "content": "x", "onward": onward})
    return found


def turn(session: str, index: int, prompt: tuple[int, ...], choice: int, logprob: float, **fields: Any) -> Completion:
    return Completion(
        inference_id=InferenceId(f"{session}-{index}"),
        session_id=SessionId(session),
        turn_index=index,
        parent_id=InferenceId(f"{session}-{index - 1}") if index else None,
        group_id=GroupId(f"{session}-{index}"),
        namespace=Namespace("tests"),
        user_id=None,
        workload="fix",
        purpose="turn",
        received_at=START,
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=(CONTEXTS + choice,),
        segments=(Segment(start=0, end=1, kind="answer"),),
        logprobs=(logprob,),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="small",
        policy_versions=(VersionSpan(start=0, end=1, version=base_ref(1)),),
        tokenizer_digest="",
        renderer="",
        finish_reason="stop",
        delivered_tokens=1,
        latency_ms=0.0,
        **fields,
    )


def sampled(policy: SmallPolicy, prompt: tuple[int, ...], luck: float) -> tuple[int, float]:
    logprobs_A = policy.next_logprobs(torch.tensor([(*(EMPTY,) * WINDOW, *prompt)[-WINDOW:]]))[0]
    choice = min(int((logprobs_A.exp().cumsum(0) < luck).sum()), CHOICES - 1)
    return choice, float(logprobs_A[choice])


def session(policy: SmallPolicy, name: str, spec: RewardSpec, rng: np.random.Generator) -> list[ScoredTurn]:
    """Play a session: one turn calls tools, the other reads their results; what both earned is the scorer's own."""
    prompt, asked = (int(rng.integers(CONTEXTS)),), ({"role": "user", "content": "fix it"},)
    choice, logprob = sampled(policy, prompt, rng.random())
    calls = tuple(ToolCall(id=f"call-{place}", name="grep", arguments="{}", index=place) for place in range(CALLS))
    first = turn(name, 0, prompt, choice, logprob, messages=asked, tool_calls=calls)
    longer = (*prompt, *first.token_ids)
    said, its_logprob = sampled(policy, longer, rng.random())
    told = (*asked, {"role": "assistant", "content": ""}, *results(choice))
    second = turn(name, 1, longer, said, its_logprob, messages=told)
    success, scored, parent = float(rng.random() < SUCCEEDS), [], None
    for each in (first, second):
        facts = facts_of(each, parent, spec.rules("fix", "tests"))
        effort = effort_of(row(each, facts), spec.rules("fix", "tests"))
        scored.append(ScoredTurn(each, reward_of(each, success + sum(effort.values()), START)))
        parent = facts
    return scored


def row(of: Completion, facts: Facts) -> Turn:
    return Turn(
        inference_id=of.inference_id,
        session_id=of.session_id,
        namespace=of.namespace,
        workload=of.workload,
        purpose=of.purpose,
        turn_index=of.turn_index,
        empty=False,
        partition=0,
        facts=facts,
        opened_at=of.received_at,
    )


def share_together(state: LearnerState) -> float:
    assert isinstance(state.policy, SmallPolicy)
    prompts = torch.tensor([(*(EMPTY,) * (WINDOW - 1), context) for context in range(CONTEXTS)])
    return float(state.policy.next_logprobs(prompts).exp()[:, TOGETHER].mean())


def learned(second: float, seed: int) -> float:
    """Return the share of calls together after learning. A turn earns what comes of it: the next turn pays."""
    torch.set_num_threads(1)
    settings = settings_for(seed, 0.012, {"advantage.turn_discount": 1.0})
    state, spec, rng = small_state(settings), spec_of(second), np.random.default_rng(seed)
    assert isinstance(state.policy, SmallPolicy)
    for step in range(STEPS):
        played = [session(state.policy, f"{step}-{number}", spec, rng) for number in range(SESSIONS)]
        update(state, [scored for each in played for scored in each], settings)
    return share_together(state)


def test_the_parallel_share_rises_where_seconds_cost_and_stays_where_they_do_not() -> None:
    begun = share_together(small_state(settings_for(0, 0.012, {})))
    assert abs(begun - 1 / CHOICES) < 0.05
    costly, free = [learned(2.0, seed) for seed in range(2)], [learned(0.0, 0)]
    assert min(costly) > 0.8, costly
    assert max(free) < 0.6, free
