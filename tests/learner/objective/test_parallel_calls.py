"""An agent that needs three results learns to ask for them at once, where a turn is told what later ones cost."""

from datetime import UTC, datetime, timedelta

import pytest
import torch
from made_events import completion, reward_of

from bench.learning.feedback_loop import settings_for
from bench.learning.feedback_world import CONTEXTS
from bench.learning.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from core.events import Completion
from core.ids import InferenceId, SessionId
from core.operations.ledger import Effort
from core.reward_spec import EffortSpec
from learner.sequences.scored import ScoredTurn
from learner.updates.update import update

NEEDED, SECONDS, TOKENS = 3, 2.0, 10  # results; of each call
AT_ONCE = 0  # the choice that asks for all that is left; each other one asks for one
SPEC = EffortSpec(coefficient=0.01, second=5.0)
START = datetime(2026, 1, 1, tzinfo=UTC)


def share_at_once(policy: SmallPolicy, prompt: tuple[int, ...] = (0,)) -> float:
    return float(choices(policy, prompt).exp()[AT_ONCE])


def choices(policy: SmallPolicy, prompt: tuple[int, ...]) -> torch.Tensor:
    return policy.next_logprobs(torch.tensor([(*(EMPTY,) * WINDOW, *prompt)[-WINDOW:]]))[0]


def session(policy: SmallPolicy, name: str) -> list[ScoredTurn]:
    """Work until all results were read. Each call costs the same tokens, whenever it is made; all work is accepted."""
    turns, prompt, had, before, seconds = list[ScoredTurn](), (0,), 0, Effort(), 0.0
    while True:
        logprobs = choices(policy, prompt)
        token = int(torch.multinomial(logprobs.exp(), 1))
        calls = NEEDED - had if token == AT_ONCE else min(1, NEEDED - had)
        own = Effort(
            tool_call=TOKENS * calls,
            answer=0 if calls else TOKENS,
            calls=min(1, calls),
            parallel_calls=max(0, calls - 1),
            seconds=seconds,
        )
        paid = SPEC.coefficient * (SPEC.cost((before + own).weighed(SPEC)) - SPEC.cost(before.weighed(SPEC)))
        turn = said(name, len(turns), prompt, CONTEXTS + token, float(logprobs[token]))
        at = START + timedelta(seconds=len(turns))
        turns.append(ScoredTurn(turn, reward_of(turn, (0.0 if calls else 1.0) - paid, at)))
        if not calls:
            return turns
        had, before, seconds = had + calls, before + own, SECONDS
        prompt = (*prompt, CONTEXTS + token, had)


def said(name: str, index: int, prompt: tuple[int, ...], token: int, logprob: float) -> Completion:
    return completion(
        SessionId(name),
        inference_id=InferenceId(f"{name}-{index}"),
        parent_id=InferenceId(f"{name}-{index - 1}") if index else None,
        turn_index=index,
        prompt_token_ids=prompt,
        token_ids=(token,),
        logprobs=(logprob,),
        policy_versions=(),
    )


@pytest.mark.parametrize(("turn_discount", "learns"), [(1.0, True), (0.0, False)])
def test_of_equal_tokens_it_learns_to_call_at_once_where_later_turns_count(turn_discount: float, learns: bool) -> None:
    """By itself the turn that makes more calls is the dearer one; what it spares comes later."""
    torch.manual_seed(0)
    settings = settings_for(0, 0.012, {"advantage.turn_discount": turn_discount})
    state = small_state(settings)
    assert isinstance(state.policy, SmallPolicy)
    began = share_at_once(state.policy)
    for step in range(30):
        update(state, [turn for each in range(12) for turn in session(state.policy, f"{step}-{each}")], settings)
    ended = share_at_once(state.policy)
    assert (ended > 0.8) if learns else (ended < began)
