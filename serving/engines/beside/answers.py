"""The first process's side: its engine generates for the others as for itself."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import msgspec

from core.beside.listener import Listener
from core.grammars.compiling import compile_for
from core.grammars.library import Grammars
from core.ports import Policy, TokenChunk
from serving.engines.beside.words import ENGINE, GENERATE, GRAMMAR, EngineShown, encode, read_grammar, read_request


def answer_for(listener: Listener, policy: Policy, state: Callable[[], str], grammars: Grammars) -> None:
    """Let the processes that connect to `listener` generate with `policy`.

    `state` returns `ok`, or what is wrong with it; `grammars` are those that its answers follow."""

    async def generate(body: msgspec.Raw) -> AsyncGenerator[tuple[bytes, bool], None]:
        chunks = cast("AsyncGenerator[TokenChunk, None]", policy.generate(read_request(body)))
        async with aclosing(chunks):
            async for chunk in chunks:
                yield encode(chunk), chunk.finish_reason is not None

    async def prepare(body: msgspec.Raw) -> bytes:
        asked = read_grammar(body)
        await compile_for(grammars, asked.grammar, asked.stop_token_ids, asked.scope)
        return encode(None)

    listener.stream(GENERATE, generate)
    listener.answer(GRAMMAR, prepare)
    listener.show(ENGINE, lambda: encode(EngineShown(policy.live_version, policy.context_length, state())))
