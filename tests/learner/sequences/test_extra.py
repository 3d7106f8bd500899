"""Sequences beside the batch are computed as any other, and cannot be mistaken for what was sampled."""

import pytest
import torch
from logged_world import MODEL, make_turn
from past_batches import DEFAULT, some_batch

from core.settings import LearnerSettings
from learner.batches.staleness import measure
from learner.sequences.extra import ExtraLoss, ExtraPart, ExtraSequence, extra_parts
from learner.sequences.joining import merge
from learner.sequences.tensors import micro_batches
from learner.updates.extra import add_gradients
from learner.updates.figures import UpdateFigures
from learner.updates.state import make_state


def some_sequences() -> list[ExtraSequence]:
    """Return the answers of some turns, of which the last five tokens are predicted."""
    turns = [make_turn(number) for number in range(3)]
    found = []
    for index, turn in enumerate(turns):
        ids = turn.prompt_token_ids + turn.token_ids[: 12 - 2 * index]
        found.append(ExtraSequence(ids, tuple(range(len(ids) - 5, len(ids))), index, 0.5))
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_the_gradient_is_that_of_the_likelihood_written_out(packed: bool) -> None:
    sequences, model = some_sequences(), make_state(MODEL, DEFAULT).policy.model
    expected = torch.zeros(())
    for index, sequence in enumerate(sequences):
        logits_TV = model(input_ids=torch.tensor([sequence.token_ids])).logits[0] / sequence.temperature
        logprobs_TV = logits_TV.log_softmax(-1)
        for place in sequence.places:
            expected = expected - (1 + index) * logprobs_TV[place - 1, sequence.token_ids[place]] / 40
    expected.backward()  # type: ignore[no-untyped-call]
    state, weights_S = make_state(MODEL, DEFAULT), torch.arange(1.0, 4.0)
    parts = extra_parts(sequences, 64, "cpu", packed=packed)
    assert len(parts) > 1
    tally = UpdateFigures()
    loss = ExtraLoss("some_loss", parts, lambda part, logprobs_N: -(weights_S[part.sequences_N] * logprobs_N).sum())
    add_gradients(state, [loss], DEFAULT, 40, tally)
    assert tally.sums["some_loss"] == pytest.approx(40 * float(expected.detach()), rel=1e-5)
    for (name, ours), theirs in zip(state.policy.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_comparison_with_what_was_sampled_is_no_number() -> None:
    """Tokens of the batch in the same places have one."""
    (part,) = extra_parts(some_sequences(), 10_000, "cpu")
    batch = some_batch(0, 3)
    (sampled,) = micro_batches(merge(batch), batch, 10_000, "cpu")
    for each, is_number in ((part.tokens, False), (sampled, True)):
        drift = measure(torch.zeros(len(each.targets_N)), each.behaviour_N, each.turns_N, 3)
        assert bool(drift.divergence_M.isfinite().any()) == is_number
    assert not part.tokens.versions_N.any()


def test_each_token_knows_its_sequence_and_its_place_there() -> None:
    sequences = some_sequences()
    seen: dict[tuple[int, int], int] = {}
    for part in extra_parts(sequences, 64, "cpu"):
        for owner, index, target in zip(*map(torch.Tensor.tolist, _of(part)), strict=True):
            seen[owner, index] = target
    assert seen == {
        (owner, index): sequence.token_ids[place]
        for owner, sequence in enumerate(sequences)
        for index, place in enumerate(sequence.places)
    }


def _of(part: ExtraPart) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return part.sequences_N, part.tokens.indices_N, part.tokens.targets_N


def test_none_is_nothing() -> None:
    tally = UpdateFigures()
    add_gradients(make_state(MODEL, DEFAULT), [], LearnerSettings(), 1, tally)
    assert not tally.sums
