"""The masks under which turns were sampled, made again: by their grammars, or from their recorded sets of ids.

Log-probabilities, entropy and the distance to the anchor are taken under them, as the behaviour log-probabilities were:
else an importance ratio compares two distributions over different ids.

Legend: N output tokens of a turn or a micro-batch, M distinct sets, P words of 32 ids."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from onward_kernels.sampling_mask import EVERY_ID, SamplingMask

from core.events import Completion
from core.grammars import sets
from core.grammars.library import grammars_of
from core.grammars.masks import OTHER_MASKS, NoMasks, Words, made_again, shared
from core.ids import InferenceId

_MOST_BYTES: Final = 128 << 20  # of the masks that are kept


class MasksOfTurns:
    """The masks of turns that a model with this directory's tokenizer answered. Thread-safe.

    Those used last are kept: a turn is admitted, tried, and trained on with the same ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._kept: OrderedDict[InferenceId, tuple[object, Sequence[Words], int]] = OrderedDict()
        self._kept_bytes = 0

    def refusal(self, turn: Completion) -> str | None:
        """Return why a turn's masks cannot be made again, so that it never trains; None where they can."""
        try:
            self.of(turn)
        except NoMasks as error:
            return str(error)
        return None

    def of(self, turn: Completion) -> Sequence[Words] | None:
        """Return the mask [P] of each output token; None where all ids were allowed.

        Raises NoMasks."""
        if not has_masks(turn):
            return None
        made_of = turn.sampling.grammar, turn.logprob_space, turn.token_ids, turn.attachments
        with self._lock:
            kept = self._kept.get(turn.inference_id)
            if kept is not None and kept[0] == made_of:
                self._kept.move_to_end(turn.inference_id)
                return kept[1]
        masks = self._made(turn)
        self._keep(turn.inference_id, made_of, masks)
        return masks

    def _keep(self, inference_id: InferenceId, made_of: object, masks: Sequence[Words]) -> None:
        size = sum({id(mask): mask.nbytes for mask in masks}.values())
        with self._lock:
            _, _, replaced = self._kept.pop(inference_id, (None, None, 0))
            self._kept[inference_id] = made_of, masks, size
            self._kept_bytes += size - replaced
            while self._kept_bytes > _MOST_BYTES:
                _, (_, _, dropped) = self._kept.popitem(last=False)
                self._kept_bytes -= dropped

    def _made(self, turn: Completion) -> Sequence[Words]:
        masks: Sequence[Words] | None = None
        if turn.sampling.grammar is not None:
            masks = made_again(turn, grammars_of(self._directory))
        if turn.logprob_space.mask is not None:
            masks = self._recorded(turn, turn.logprob_space.mask, masks)
        assert masks is not None
        return masks

    def _recorded(self, turn: Completion, attachment: str, around: Sequence[Words] | None) -> list[Words]:
        """Return the masks of the recorded sets, each of which lies within the grammar's `around` it."""
        vocabulary = grammars_of(self._directory).vocabulary
        try:
            recorded = sets.unpack(turn.attachments[attachment])
        except (KeyError, ValueError) as error:
            raise NoMasks(OTHER_MASKS) from error
        if len(recorded) != len(turn.token_ids):
            raise NoMasks(OTHER_MASKS)
        found, distinct = [], dict[bytes, Words]()
        for place, (ids, token_id) in enumerate(zip(recorded, turn.token_ids, strict=True)):
            if token_id not in ids or ids[-1] >= vocabulary:
                raise NoMasks(OTHER_MASKS)
            words = _words(ids, vocabulary)
            if around is not None and (words & ~around[place]).any():
                raise NoMasks(OTHER_MASKS)
            found.append(shared(words, distinct))
        return found


@lru_cache(maxsize=4)
def masks_of(directory: Path) -> MasksOfTurns:
    """Return the masks of turns of the model in `directory`, which whoever asks for them in one process shares."""
    return MasksOfTurns(directory)


def has_masks(turn: Completion) -> bool:
    return turn.sampling.grammar is not None or turn.logprob_space.mask is not None


def sampling_mask(masks: Iterable[Words | None], device: torch.device | str) -> SamplingMask | None:
    """Return the masks of the tokens of a micro-batch, equal ones stored once; None where none has any."""
    rows: dict[bytes, int] = {}
    distinct, set_of = list[Words](), list[int]()
    for mask in masks:
        if mask is None:
            set_of.append(EVERY_ID)
            continue
        row = rows.setdefault(mask.tobytes(), len(rows))
        if row == len(distinct):
            distinct.append(mask)
        set_of.append(row)
    if not distinct:
        return None
    return SamplingMask(torch.from_numpy(np.stack(distinct)), torch.tensor(set_of)).to(device)


def _words(ids: Sequence[int], vocabulary: int) -> NDArray[np.int32]:
    bits = np.zeros(-(-vocabulary // 32) * 32, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
