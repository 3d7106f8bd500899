"""Turns that continue each other share a sequence, and train as if each were alone."""

import random
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logged_world import MODEL, make_reward, make_turn
from torch import Tensor

from core.events import Completion, LogprobSpace, Segment
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import TrainingSequence, TurnSpan, merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches


def scored(
    prompt: tuple[int, ...], answer: tuple[int, ...], session: str = "s", temperature: float = 1.0
) -> ScoredTurn:
    turn = make_turn(
        0,
        session=session,
        prompt_token_ids=prompt,
        token_ids=answer,
        logprobs=tuple(-1.0 - 0.1 * place for place in range(len(answer))),
        logprob_space=LogprobSpace(temperature=temperature),
    )
    return ScoredTurn(turn, make_reward(turn, 1.0))


def apart(batch: list[ScoredTurn]) -> list[TrainingSequence]:
    """Return a sequence for each turn, to compare merged ones with."""

    def alone(index: int, turn: Completion) -> TrainingSequence:
        whole = turn.prompt_token_ids + turn.token_ids
        return TrainingSequence(whole, (TurnSpan(index, len(turn.prompt_token_ids), len(whole)),))

    return [alone(index, scored.turn) for index, scored in enumerate(batch)]


def session(rng: random.Random, turns: int, name: str) -> list[ScoredTurn]:
    """Return turns whose prompts are all tokens so far and a few new ones, like a tool's result."""
    tokens: tuple[int, ...] = tuple(rng.randrange(512) for _ in range(rng.randint(3, 9)))
    batch = []
    for _ in range(turns):
        answer = tuple(rng.randrange(512) for _ in range(rng.randint(1, 7)))
        batch.append(scored(tokens, answer, name, rng.choice([0.5, 1.0])))
        tokens += answer + tuple(rng.randrange(512) for _ in range(rng.randint(1, 5)))
    return batch


def gradients(
    policy: PolicyModel,
    batch: list[ScoredTurn],
    sequences: list[TrainingSequence],
    max_tokens: int,
    packed: bool = False,
) -> tuple[dict[int, list[float]], list[Tensor]]:
    """Return (log-probabilities by turn, gradient of a loss that weighs all turns' tokens differently)."""
    policy.model.zero_grad()
    found: dict[int, list[float]] = {}
    for part in micro_batches(sequences, batch, max_tokens, "cpu", packed=packed):
        logprobs_N, entropy_N = policy.score(policy.hidden_states(part), part)
        weights_N = (logprobs_N.detach() - part.behaviour_N).exp().clamp(max=2) * (1 + part.turns_N)
        (weights_N * logprobs_N + 0.1 * entropy_N).sum().backward()
        for turn, value in zip(part.turns_N.tolist(), logprobs_N.tolist(), strict=True):
            found.setdefault(turn, []).append(value)
    return found, [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("max_tokens", [64, 4096])
def test_merged_and_apart_give_the_same_losses_and_gradients(max_tokens: int, packed: bool) -> None:
    rng = random.Random(4)
    batch = session(rng, 4, "a") + session(rng, 1, "b") + session(rng, 3, "c")
    rng.shuffle(batch)
    policy = PolicyModel(MODEL, "cpu")
    merged = merge(batch)
    assert len(merged) == 3
    merged_logprobs, merged_gradients = gradients(policy, batch, merged, max_tokens, packed)
    logprobs, expected = gradients(policy, batch, apart(batch), max_tokens)
    assert merged_logprobs.keys() == logprobs.keys() == set(range(8))
    for turn, values in logprobs.items():
        assert merged_logprobs[turn] == pytest.approx(values, abs=1e-4)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    for mine, other in zip(merged_gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5 * largest)


def test_a_session_becomes_one_sequence() -> None:
    first = scored((1, 2), (3, 4))
    second = scored((1, 2, 3, 4, 5), (6,))
    (sequence,) = merge([second, first])  # in any order
    assert sequence.token_ids == (1, 2, 3, 4, 5, 6)
    assert sequence.spans == (TurnSpan(1, 2, 4), TurnSpan(0, 5, 6))


def test_a_prompt_that_was_rewritten_stands_alone() -> None:
    assert len(merge([scored((1, 2), (3, 4)), scored((1, 2, 3, 9, 5), (6,))])) == 2


def test_a_branch_stands_alone() -> None:
    """Regenerate: two answers continue one turn, whose tokens train once."""
    root, left, right = scored((1,), (2,)), scored((1, 2, 3), (4,)), scored((1, 2, 3), (5,))
    sequences = merge([root, left, right])
    assert sorted(span.turn for sequence in sequences for span in sequence.spans) == [0, 1, 2]
    assert sorted(len(sequence.spans) for sequence in sequences) == [1, 2]


def test_sessions_are_kept_apart() -> None:
    assert len(merge([scored((1,), (2,), "a"), scored((1, 2, 3), (4,), "b")])) == 2


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=5),
            st.lists(st.integers(0, 1), min_size=1, max_size=3),
            st.sampled_from("ab"),
        ),
        max_size=8,
    )
)
def test_every_turn_stands_once_among_its_own_tokens(given: list[tuple[list[int], list[int], str]]) -> None:
    batch = [scored(tuple(prompt), tuple(answer), name) for prompt, answer, name in given]
    spans = [(sequence, span) for sequence in merge(batch) for span in sequence.spans]
    assert sorted(span.turn for _, span in spans) == list(range(len(batch)))
    for sequence, span in spans:
        turn = batch[span.turn].turn
        assert sequence.token_ids[: span.start] == turn.prompt_token_ids
        assert sequence.token_ids[span.start : span.end] == turn.token_ids


def test_micro_batches_hold_the_bound_and_every_token() -> None:
    rng = random.Random(1)
    batch = [turn for number in range(9) for turn in session(rng, 2, f"s{number}")]
    parts = micro_batches(merge(batch), batch, 90, "cpu")
    assert len(parts) > 1
    assert all(part.ids_BT.numel() <= 90 for part in parts)
    assert sum(len(part.targets_N) for part in parts) == sum(len(one.turn.token_ids) for one in batch)
    for part in parts:
        for turn, target, place in zip(
            part.turns_N.tolist(), part.targets_N.tolist(), part.places_N.tolist(), strict=True
        ):
            whole = batch[turn].turn.prompt_token_ids + batch[turn].turn.token_ids
            assert whole[place + 1] == target


@pytest.mark.parametrize("layout", [{}, {"packed": True}, {"shared": True}])
def test_only_what_the_model_sampled_has_a_ratio(layout: dict[str, bool]) -> None:
    """What users and tools wrote between the turns has none, nor what was put into the model's mouth."""
    rng = random.Random(2)
    batch = [turn for number in range(3) for turn in session(rng, 3, f"s{number}")]
    forced = Segment(start=0, end=1, kind="forced")
    batch[4] = replace(batch[4], turn=msgspec.structs.replace(batch[4].turn, segments=(forced,)))
    sampled = [
        (number, place, token, pytest.approx(scored.turn.logprobs[place]))
        for number, scored in enumerate(batch)
        for place, token in enumerate(scored.turn.token_ids)
        if (number, place) != (4, 0)
    ]
    found: list[tuple[int, int, int, float]] = []
    for part in micro_batches(merge(batch), batch, 60, "cpu", **layout):
        of_each = part.turns_N, part.indices_N, part.targets_N, part.behaviour_N
        found += zip(*(each.tolist() for each in of_each), strict=True)
    assert sorted(found) == sampled


def test_packed_rows_hold_the_bound_every_token_and_no_padding() -> None:
    rng = random.Random(1)
    batch = [turn for number in range(9) for turn in session(rng, 2, f"s{number}")]
    sequences = merge(batch)
    parts = micro_batches(sequences, batch, 90, "cpu", packed=True)
    assert 1 < len(parts) < len(sequences)
    assert all(part.ids_BT.shape[0] == 1 and part.ids_BT.numel() <= 90 for part in parts)
    assert sum(part.ids_BT.numel() for part in parts) == sum(len(sequence.token_ids) for sequence in sequences)
    assert sum(len(part.targets_N) for part in parts) == sum(len(one.turn.token_ids) for one in batch)
    for part in parts:
        assert part.positions_BT is not None
        for turn, target, place in zip(
            part.turns_N.tolist(), part.targets_N.tolist(), part.places_N.tolist(), strict=True
        ):
            whole = batch[turn].turn.prompt_token_ids + batch[turn].turn.token_ids
            assert whole[int(part.positions_BT[0, place]) + 1] == target


def test_what_shares_a_row_is_not_seen() -> None:
    """Other neighbours do not change a single bit."""
    mine = scored((5, 6, 7), (8, 9), "a")
    policy = PolicyModel(MODEL, "cpu")
    found = []
    for other in ((1, 2, 3, 4), (300, 301, 302, 303)):
        batch = [scored(other[:2], other[2:], "b"), mine, scored(other, other, "c")]
        (part,) = micro_batches(merge(batch), batch, 64, "cpu", packed=True)
        with torch.no_grad():
            logprobs_N, _ = policy.score(policy.hidden_states(part), part)
        found.append(logprobs_N[part.turns_N == 1].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("packed", [False, True])
def test_a_sequence_over_the_bound_goes_alone(packed: bool) -> None:
    batch = [scored(tuple(range(80)), (1,), "a"), scored((1,), (2,), "b")]
    parts = micro_batches(merge(batch), batch, 64, "cpu", packed=packed)
    assert sorted(tuple(part.ids_BT.shape) for part in parts) == [(1, 2), (1, 81)]
