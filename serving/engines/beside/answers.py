"""The first process's side: its engine generates for the others as for itself."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import msgspec

from core.beside.listener import Listener
from core.ports import Policy, TokenChunk
from serving.engines.beside.words import ENGINE, GENERATE, EngineShown, encode, read_request


def answer_for(listener: Listener, policy: Policy, state: Callable[[], str]) -> None:
    """Let the processes that connect to `listener` generate with `policy`.

    `state` returns `ok`, or what is wrong with it."""

    async def generate(body: msgspec.Raw) -> AsyncGenerator[tuple[bytes, bool], None]:
        chunks = cast("AsyncGenerator[TokenChunk, None]", policy.generate(read_request(body)))
        async with aclosing(chunks):
            async for chunk in chunks:
                yield encode(chunk), chunk.finish_reason is not None

    listener.stream(GENERATE, generate)
    listener.show(ENGINE, lambda: encode(EngineShown(policy.live_version, policy.context_length, state())))
