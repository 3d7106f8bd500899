"""What the processes say to one another about the engine."""

from typing import Final

import msgspec

from core.codec import decoder, encoder
from core.ids import PolicyRef
from core.ports import GenerateRequest, TokenChunk

GENERATE: Final = "engine.generate"
ENGINE: Final = "engine.state"


class EngineShown(msgspec.Struct, frozen=True):
    """What the first process shows of its engine, whenever it changes."""

    live: PolicyRef
    context_length: int
    state: str


encode: Final = encoder().encode
read_request: Final = decoder(GenerateRequest).decode
read_chunk: Final = decoder(TokenChunk).decode
read_shown: Final = decoder(EngineShown).decode
