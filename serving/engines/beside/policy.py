"""`Policy` of a process beside the first one, whose engine generates."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec

from core import telemetry
from core.beside.line import OK, Line, greeting
from core.errors import InvalidRequest
from core.events import Grammar, Sampling
from core.ids import PolicyRef
from core.ports import GenerateRequest, TokenChunk
from serving.engines.beside.words import ENGINE, GENERATE, GRAMMAR, GrammarAsked, encode, read_chunk, read_shown
from serving.engines.requests import check_sampling, untrainable

_MOST_TOKENS = 1 << 62  # in any vocabulary
_COMPILED_S = 60.0


class BesidePolicy:
    """Implements core.ports.Policy over a line, for an engine within the first process."""

    def __init__(self, line: Line, path: Path) -> None:
        """Ask once what the first process shows at `path`. Blocks. Raises EngineUnavailable where it is away."""
        self._line = line
        self._shown = read_shown(greeting(path, ENGINE))
        telemetry.POLICY_VERSION.set(self._shown.live.version)
        line.hear(ENGINE, self._hear)

    def _hear(self, body: msgspec.Raw) -> None:
        self._shown = read_shown(body)
        telemetry.POLICY_VERSION.set(self._shown.live.version)

    @property
    def live_version(self) -> PolicyRef:
        return self._shown.live

    @property
    def context_length(self) -> int:
        return self._shown.context_length

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        return self._shown.state if self._line.state == OK else self._line.state

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        return untrainable(sampling, tells_sets=True)

    def prepare(self, grammar: Grammar, stop_token_ids: tuple[int, ...], scope: str | None = None) -> None:
        """Have the first process compile a grammar, and return once it has: see `Grammars.prepare`. Blocks.

        Raises EngineUnavailable where that is away."""
        asked = GrammarAsked(grammar, stop_token_ids, scope)
        self._line.ask_from_thread(GRAMMAR, encode(asked), _COMPILED_S)

    async def aclose(self) -> None:
        await self._line.aclose()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        try:
            body = encode(request)
        except OverflowError as error:
            check_sampling(request.sampling, _MOST_TOKENS)  # names the field
            raise InvalidRequest(f"the request holds a number that no engine takes: {error}") from error
        await self._line.open()
        async with aclosing(self._line.stream(GENERATE, body)) as parts:
            async for part in parts:
                yield read_chunk(part)
