"""The candidate's log-ratios on logged turns, checked by stock transformers token by token."""

import math

import numpy as np
import pytest
import torch
from logged_world import MODEL, make_reward, make_turn
from transformers import AutoModelForCausalLM

from core.events import Completion, Segment
from core.ids import UserHash
from learner.model.policy_model import PolicyModel
from learner.off_policy.estimators import off_policy
from learner.off_policy.log_ratios import logged_turns
from learner.off_policy.overlap import LoggedTurns
from learner.sequences.scored import ScoredTurn

SCALE = 0.3  # the candidate's logits, in units of the logged policy's


def scored(*turns: Completion) -> list[ScoredTurn]:
    return [ScoredTurn(turn, make_reward(turn, float(n % 2))) for n, turn in enumerate(turns)]


def told(batch: list[ScoredTurn], scale: float = 1.0) -> LoggedTurns:
    torch.set_num_threads(1)
    candidate = PolicyModel(MODEL, "cpu")
    head = candidate.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach() * scale)  # no longer tied to the input's
    found = logged_turns(candidate, batch, 256, "cpu")
    assert candidate.model.training
    return found


def by_hand(turn: Completion, scale: float, forced: frozenset[int] = frozenset()) -> float:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ids, start = (*turn.prompt_token_ids, *turn.token_ids), len(turn.prompt_token_ids)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0] * scale / turn.sampling.temperature
    logprobs = logits.log_softmax(-1)
    places = [place for place in range(len(turn.token_ids)) if place not in forced]
    return math.fsum(float(logprobs[start + n - 1, turn.token_ids[n]]) - turn.logprobs[n] for n in places)


def test_the_policy_that_spoke_is_as_likely_to_say_it() -> None:
    turns = told(scored(*(make_turn(n, temperature=0.5 + n % 2 / 2) for n in range(12))))
    assert turns.log_ratio_N == pytest.approx(np.zeros(12), abs=1e-3)
    assert turns.reward_N.tolist() == [0.0, 1.0] * 6


def test_another_is_as_likely_as_its_tokens_are_together() -> None:
    forced = make_turn(2, segments=(Segment(start=0, end=3, kind="forced"), Segment(start=3, end=12, kind="answer")))
    batch = scored(make_turn(0), make_turn(1, temperature=0.5), forced)
    expected = [by_hand(one.turn, SCALE) for one in batch[:2]] + [by_hand(forced, SCALE, frozenset(range(3)))]
    assert told(batch, SCALE).log_ratio_N == pytest.approx(expected, abs=1e-3)
    assert max(map(abs, expected)) > 0.1


def test_users_are_clusters_and_of_nobody_sessions() -> None:
    users = (UserHash("a"), UserHash("b"), UserHash("a"), None, None, None)
    sessions = ("s", "t", "u", "v", "v", "w")
    pairs = enumerate(zip(users, sessions, strict=True))
    turns = told(scored(*(make_turn(n, user_id=user, session=session) for n, (user, session) in pairs)))
    a, b, again, v, v_again, w = turns.cluster_N.tolist()
    assert (a, v) == (again, v_again)
    assert len({a, b, v, w}) == 4


def test_untrainable_turns_are_named() -> None:
    turn = make_turn(0, trainable=False, untrainable_reasons=("top_p",))
    with pytest.raises(ValueError, match=rf"{turn.inference_id}: untrainable \(top_p\)"):
        told(scored(turn))


def test_turns_of_few_users_are_refused_by_the_estimate() -> None:
    assert "are worth" in str(off_policy(told(scored(*(make_turn(n) for n in range(6))))).overlap.refused)
