"""The grammar of an answer that a remote engine samples, followed token by token: its masks are made again here.

A remote engine tells no masks. What a grammar, the tokens and the library's version make of them is the same
everywhere, so their digest is recorded for the learner as if the engine had told it; a token that they do not allow
shows that the engine's masks were others."""

import asyncio

import msgspec

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.library import Grammars
from core.grammars.masks import OTHER_MASKS, Masks, NotAllowed
from core.ports import TokenChunk


class Followed:
    """One answer. `take` its chunks in order."""

    def __init__(self, masks: Masks) -> None:
        self._masks: Masks | None = masks

    @classmethod
    async def begin(cls, grammars: Grammars, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> "Followed":
        """Begin an answer. Raises InvalidRequest for a grammar that cannot be compiled."""
        return cls(await asyncio.to_thread(Masks, grammars, grammar, stop_token_ids))

    async def take(self, chunk: TokenChunk) -> TokenChunk:
        """Return the chunk with the masks' record so far, or with the reason why there is none."""
        return await asyncio.to_thread(self._take, chunk)

    def _take(self, chunk: TokenChunk) -> TokenChunk:
        if self._masks is not None:
            try:
                for token_id in chunk.token_ids:
                    self._masks.take(token_id)
            except (NotAllowed, InvalidRequest):
                self._masks = None
        if self._masks is None:
            reasons = tuple(dict.fromkeys((*chunk.untrainable_reasons, OTHER_MASKS)))
            return msgspec.structs.replace(chunk, untrainable_reasons=reasons)
        return msgspec.structs.replace(chunk, grammar=self._masks.record())
