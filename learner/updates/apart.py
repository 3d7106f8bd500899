"""Sequences that are computed beside an update's sampled tokens, such as users' own texts."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from core.settings import LearnerSettings
from learner.sequences.tensors import Apart, MicroBatch, apart_batches
from learner.updates.state import LearnerState


def parts_of(
    state: LearnerState, sequences: Sequence[Apart], settings: LearnerSettings
) -> Iterator[tuple[MicroBatch, list[int], bool]]:
    """Yield this process's micro-batches: the tensors, the indices of the sequences, and whether it counts."""
    compute = settings.compute
    parts = apart_batches(sequences, compute.micro_batch_tokens, settings.device, packed=compute.packed)
    for (part, rows), counts in state.ranks.share(parts):
        yield part, rows, counts


def add_gradient(
    state: LearnerState,
    sequences: Sequence[Apart],
    loss_of: Callable[[MicroBatch, list[int]], tuple[Tensor, float]],
    names: tuple[str, str],
    settings: LearnerSettings,
    num_tokens: int,
) -> dict[str, float]:
    """Add the gradient of the sequences' loss; return the sums of loss, size and positions over all processes.

    `loss_of` returns a micro-batch's loss and size, which `names` names. `num_tokens`: the update's sampled tokens, by
    which every term of its loss is divided."""
    sums = dict.fromkeys((*names, "positions"), 0.0)
    for part, rows, counts in parts_of(state, sequences, settings):
        loss, size = loss_of(part, rows)
        (loss / num_tokens * (state.ranks.count if counts else 0)).backward()
        if counts:
            for name, value in zip(sums, (float(loss.detach()), size, part.positions), strict=True):
                sums[name] += value
    return state.ranks.total(sums)
