"""Assignment of slots to requests, with prefix caching.

A finished request leaves the keys and values of its tokens in its slot, and a running one has those of its prompt. The
next request that begins with the same tokens, under the same version and in the same scope, reuses them: in the same
slot if it continues all of them, else in another slot, to which the prefix is copied. Copying costs a thousandth of
computing, and leaves the longer conversation to those who continue it. Nothing is found across scopes, so that nobody
learns from a count or from timing what others asked.

Requests of low priority use at most half of the slots, including those in which they left prefixes, so they displace at
most half of the prefixes of others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.ids import PolicyRef

Under = tuple[PolicyRef | None, str | None]
"""The version that computed what a slot holds, and the scope of the request."""
_WORTH_TOKENS = 8  # fewer save less than the older prefix that they would displace
_NOBODY: Under = (None, None)
_LOST_TOKENS = 8  # a slot that holds more beyond a prefix is left as it is, and copied from


@dataclass(frozen=True)
class SlotAssignment:
    """A slot, and how many of the prompt's tokens are known: those of the slot `source`, which may be another."""

    slot: int
    cached: int
    source: int


class SlotTable:
    """Used by the engine's thread alone. S slots of T tokens."""

    def __init__(self, slots: int, slot_tokens: int) -> None:
        self._tokens_ST = np.zeros((slots, slot_tokens), dtype=np.int32)
        self._lengths_S = np.zeros(slots, dtype=np.int64)
        self._under: list[Under] = [_NOBODY] * slots
        self._freed_at_S = np.zeros(slots, dtype=np.int64)
        self._is_free_S = np.ones(slots, dtype=np.bool_)
        self._is_low_S = np.zeros(slots, dtype=np.bool_)  # by whom it was taken last
        self._most_low = max(1, slots // 2)
        self._releases = 0

    @property
    def num_free(self) -> int:
        return int(self._is_free_S.sum())

    def can_take(self, *, is_low: bool = False) -> bool:
        """Return whether there is a free slot for a request of this priority."""
        return bool(self._may_take_S(is_low).any())

    def _may_take_S(self, is_low: bool) -> np.ndarray:
        if is_low and self._is_low_S.sum() >= self._most_low:
            return self._is_free_S & self._is_low_S
        return self._is_free_S

    def take(self, prompt: Sequence[int], under: Under, *, is_low: bool = False) -> SlotAssignment:
        """Return a free slot, and what is known of the prompt.

        Never all of it, since the last token must be computed to sample from. The longest common prefix wins, unless it
        is short enough to be a coincidence. Where it cannot go on in its own slot, it goes to the one freed first."""
        may_take_S = self._may_take_S(is_low)
        free = np.flatnonzero(may_take_S)
        assert len(free), "take needs a free slot"
        common_S = self._common(prompt, under)
        source = int(np.lexsort((self._freed_at_S, ~may_take_S, -common_S))[0])
        cached = int(common_S[source])
        goes_on = cached and may_take_S[source] and self._lengths_S[source] - cached <= _LOST_TOKENS
        slot = source if goes_on else self._first_freed(free, source if cached else None)
        self._is_free_S[slot] = False
        self._is_low_S[slot] = is_low
        self._lengths_S[slot] = 0  # until it is known what it holds
        return SlotAssignment(slot, cached, source if cached else slot)

    def _common(self, prompt: Sequence[int], under: Under) -> np.ndarray:
        """Return how many tokens each slot has in common with the prompt: 0 where they are not worth it."""
        wanted = np.asarray(prompt[:-1], dtype=np.int32)
        alike_S = np.array([held == under for held in self._under])
        lengths_S = np.minimum(np.where(alike_S, self._lengths_S, 0), len(wanted))
        if not len(wanted):
            return lengths_S
        differs_ST = self._tokens_ST[:, : len(wanted)] != wanted
        common_S = np.where(differs_ST.any(axis=1), differs_ST.argmax(axis=1), len(wanted))
        common_S = np.minimum(common_S, lengths_S)
        common_S[common_S < _WORTH_TOKENS] = 0
        return common_S

    def _first_freed(self, free: np.ndarray, source: int | None) -> int:
        """Return the free slot that was freed first; the source only if there is no other."""
        order = np.lexsort((free, self._freed_at_S[free], free == (-1 if source is None else source)))
        return int(free[order[0]])

    def share(self, slot: int, tokens: Sequence[int], under: Under) -> None:
        """Let others go on from these tokens, whose keys and values a running request has computed."""
        assert not self._is_free_S[slot]
        self._hold(slot, tokens, under)

    def is_shared(self, slot: int) -> bool:
        """Return whether others may go on from what a running request has computed."""
        return bool(self._lengths_S[slot])

    def unshare(self, slot: int) -> None:
        """Let nobody go on from a running request: it is computed anew."""
        self._lengths_S[slot] = 0

    def release(self, slot: int, tokens: Sequence[int], under: Under) -> None:
        """`tokens`: those whose keys and values the slot holds."""
        assert not self._is_free_S[slot]
        self._releases += 1
        self._hold(slot, tokens, under)
        self._freed_at_S[slot] = self._releases
        self._is_free_S[slot] = True

    def _hold(self, slot: int, tokens: Sequence[int], under: Under) -> None:
        self._tokens_ST[slot, : len(tokens)] = tokens
        self._lengths_S[slot] = len(tokens)
        self._under[slot] = under

    def forget(self) -> None:
        """Free every slot and forget what they hold."""
        self._lengths_S[:] = 0
        self._under = [_NOBODY] * len(self._under)
        self._is_free_S[:] = True
        self._is_low_S[:] = False
