"""Assignment of slots to requests, with prefix caching.

A finished request leaves its tokens' keys and values behind; the next one that begins with the same tokens, under the
same version, continues from there."""

from collections.abc import Sequence

import numpy as np

from core.ids import PolicyRef

_WORTH_TOKENS = 8  # fewer save less than the older prefix that they would displace


class SlotTable:
    """Used by the engine's thread alone. S slots of T tokens."""

    def __init__(self, slots: int, slot_tokens: int) -> None:
        self._tokens_ST = np.zeros((slots, slot_tokens), dtype=np.int64)
        self._lengths_S = np.zeros(slots, dtype=np.int64)
        self._versions: list[PolicyRef | None] = [None] * slots
        self._freed_at_S = np.zeros(slots, dtype=np.int64)
        self._is_free_S = np.ones(slots, dtype=np.bool_)
        self._releases = 0

    @property
    def num_free(self) -> int:
        return int(self._is_free_S.sum())

    def take(self, prompt: Sequence[int], version: PolicyRef) -> tuple[int, int]:
        """Return a free slot and how many of the prompt's tokens it holds already.

        Never all of them, since the last one must be computed to sample from. The longest common prefix wins, unless it
        is short enough to be a coincidence; then the slot that was freed first."""
        free = np.flatnonzero(self._is_free_S)
        assert len(free), "take needs a free slot"
        wanted = np.asarray(prompt[:-1], dtype=np.int64)
        alike = np.array([self._versions[slot] == version for slot in free])
        lengths = np.where(alike, self._lengths_S[free], 0)
        lengths = np.minimum(lengths, len(wanted))
        differs = self._tokens_ST[free, : len(wanted)] != wanted
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), len(wanted)) if len(wanted) else lengths
        cached = np.minimum(common, lengths)
        cached[cached < _WORTH_TOKENS] = 0
        best = np.lexsort((free, self._freed_at_S[free], -cached))[0]
        slot = int(free[best])
        self._is_free_S[slot] = False
        return slot, int(cached[best])

    def release(self, slot: int, tokens: Sequence[int], version: PolicyRef | None) -> None:
        """`tokens`: those whose keys and values the slot holds, under `version`."""
        assert not self._is_free_S[slot]
        self._releases += 1
        self._tokens_ST[slot, : len(tokens)] = tokens
        self._lengths_S[slot] = len(tokens)
        self._versions[slot] = version
        self._freed_at_S[slot] = self._releases
        self._is_free_S[slot] = True

    def forget(self) -> None:
        """Free every slot and forget what they hold."""
        self._lengths_S[:] = 0
        self._versions = [None] * len(self._versions)
        self._is_free_S[:] = True
