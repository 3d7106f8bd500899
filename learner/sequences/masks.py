"""The masks under which turns were sampled, made again: by their grammars, or from their recorded sets of ids.

Log-probabilities, entropy and the distance to the anchor are taken under them, as the behaviour log-probabilities were:
else an importance ratio compares two distributions over different ids.

Legend: N output tokens of a turn or a micro-batch, M distinct sets, P words of 32 ids."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
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

GRAMMAR_BUDGET: Final = "grammar_budget"
_MOST_BYTES: Final = 128 << 20  # of the masks that are kept
_SHARES: Final = {"user": 0.05, "key": 0.1}
"""Of all time, for compiling one's new grammars."""
_SAVED_S: Final = 60.0  # the time of so many seconds may be used at once: 3 s of a user
_MOST_OWNERS: Final = 4096


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
        masks = self._known(turn)
        if masks is None:
            masks = self._made(turn)
            self._keep(turn.inference_id, _made_of(turn), masks)
        return masks

    def _known(self, turn: Completion) -> Sequence[Words] | None:
        with self._lock:
            kept = self._kept.get(turn.inference_id)
            if kept is None or kept[0] != _made_of(turn):
                return None
            self._kept.move_to_end(turn.inference_id)
            return kept[1]

    def is_ready(self, turn: Completion) -> bool:
        """Return whether the turn's masks are made again without a grammar being compiled."""
        grammar, recorded = turn.sampling.grammar, turn.logprob_space.grammar
        if grammar is None or recorded is None or self._known(turn) is not None:
            return True
        return grammars_of(self._directory).has_compiled(grammar, recorded.stop_token_ids)

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


def _made_of(turn: Completion) -> object:
    return turn.sampling.grammar, turn.logprob_space, turn.token_ids, turn.attachments


class RationedMasks:
    """The same for a learner, whose time for compiling new grammars is rationed, by user and by key.

    Else whoever sends another schema with each turn has half of it. A user who sends few is not kept waiting by others
    of the same key unless these have used the key's share up. Where time is the log's (`now_s`), as in a replay, what
    is compiled takes none of it: the same past trains the same turns on a slow machine, too. Not thread-safe."""

    def __init__(self, masks: MasksOfTurns, now_s: Callable[[], float]) -> None:
        self.of_all, self._now_s = masks, now_s
        self._paid_until_s: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        """Until when the share of each has been used up, if it had saved nothing."""

    def refusal(self, turn: Completion) -> str | None:
        """Return as `MasksOfTurns.refusal`; or `grammar_budget`, where its user or its key has no time left."""
        if self.of_all.is_ready(turn):
            return self.of_all.refusal(turn)
        began_s, owners = self._now_s(), _owners(turn)
        if any(self._paid_until_s.get(owner, began_s) > began_s for owner in owners):
            return GRAMMAR_BUDGET
        why = self.of_all.refusal(turn)
        ended_s = self._now_s()
        for owner in owners:
            paid_s = max(self._paid_until_s.pop(owner, -math.inf), began_s - _SAVED_S)
            self._paid_until_s[owner] = paid_s + (ended_s - began_s) / _SHARES[owner[0]]
        while len(self._paid_until_s) > _MOST_OWNERS:
            self._paid_until_s.popitem(last=False)
        return why


def _owners(turn: Completion) -> list[tuple[str, str, str]]:
    """Return whose time it is: the key's, and the user's where there is one."""
    key = "key", turn.namespace, turn.key_id or ""
    return [key] if turn.user_id is None else [("user", turn.namespace, turn.user_id), key]


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
