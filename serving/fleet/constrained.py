"""Computes the masks of an answer that a remote engine samples by a grammar, token by token.

A remote engine does not report its masks. They follow from the grammar, the tokens and the library's version, so their
digest is computed here and recorded for the learner; a token that the masks do not allow shows that the engine used
other masks. If the engine has another version of the library, or an unknown one, nothing is recorded: its masks may
differ even if both allow every token."""

from functools import partial

import msgspec

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.compiling import masks_of, on_a_follower
from core.grammars.library import VERSION, Grammars
from core.grammars.masks import OTHER_LIBRARY, OTHER_MASKS, Masks, NotAllowed
from core.ports import TokenChunk


class Followed:
    """One answer. `take` its chunks in order."""

    def __init__(self, masks: Masks, *, same_library: bool) -> None:
        self._masks = masks
        self._why = None if same_library else OTHER_LIBRARY

    @classmethod
    async def begin(
        cls,
        grammars: Grammars,
        grammar: Grammar,
        stop_token_ids: tuple[int, ...],
        llguidance: str,
        scope: str | None = None,
    ) -> "Followed":
        """Begin an answer of an engine with this version of llguidance; `scope` as in `Grammars.matcher`.

        Raises InvalidRequest for a grammar that cannot be compiled."""
        masks = await masks_of(grammars, grammar, stop_token_ids, scope)
        return cls(masks, same_library=llguidance == VERSION)

    async def take(self, chunk: TokenChunk) -> TokenChunk:
        """Return the chunk with the masks' record so far, or with the reason why there is none."""
        return await on_a_follower(partial(self._take, chunk))

    def _take(self, chunk: TokenChunk) -> TokenChunk:
        if self._why is None:
            try:
                for token_id in chunk.token_ids:
                    self._masks.take(token_id)
            except (NotAllowed, InvalidRequest):
                self._why = OTHER_MASKS
        if self._why is not None:
            reasons = tuple(dict.fromkeys((*chunk.untrainable_reasons, self._why)))
            return msgspec.structs.replace(chunk, untrainable_reasons=reasons)
        return msgspec.structs.replace(chunk, grammar=self._masks.record())
