"""What the processes say to one another about the engine."""

from typing import Final

import msgspec

from core.codec import decoder, encoder
from core.events import Grammar
from core.ids import PolicyRef
from core.ports import GenerateRequest, TokenChunk

GENERATE: Final = "engine.generate"
ENGINE: Final = "engine.state"
GRAMMAR: Final = "engine.grammar"


class EngineShown(msgspec.Struct, frozen=True):
    """What the first process shows of its engine, whenever it changes."""

    live: PolicyRef
    context_length: int
    state: str


class GrammarAsked(msgspec.Struct, frozen=True):
    """A grammar that is to be compiled for a scope's answers to come."""

    grammar: Grammar
    stop_token_ids: tuple[int, ...]
    scope: str | None


encode: Final = encoder().encode
read_grammar: Final = decoder(GrammarAsked).decode
read_request: Final = decoder(GenerateRequest).decode
read_chunk: Final = decoder(TokenChunk).decode
read_shown: Final = decoder(EngineShown).decode
