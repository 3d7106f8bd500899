"""The first process's side: other processes use its live state as it does."""

from collections.abc import Awaitable, Callable

import msgspec

from api.live_state.beside.words import (
    ANNOUNCED,
    COUNTED,
    KNOWN,
    OPERATIONS,
    READ_ARGUMENTS,
    TOPIC,
    encode,
    read_channel,
    read_counted,
)
from api.live_state.memory import MemoryLiveState
from core.beside.listener import Listener


def answer_for(listener: Listener, state: MemoryLiveState) -> None:
    """Let the processes that connect to `listener` use `state`, which lives on its event loop."""
    for name in OPERATIONS:
        listener.answer(TOPIC + name, _answer(name, getattr(state, name)))

    def counted(body: msgspec.Raw) -> None:
        state.slots.merge({(namespace, slot): counts for namespace, slot, counts in read_counted(body)})

    known = READ_ARGUMENTS["put_inference"]
    listener.take(KNOWN, lambda body: state.know(*known(body)))
    listener.take(COUNTED, counted)
    listener.take(ANNOUNCED, lambda body: state.announce(read_channel(body)))
    state.channels.on_announce = lambda channel: listener.tell_soon(ANNOUNCED, encode(channel))


def _answer(name: str, operation: Callable[..., Awaitable[object]]) -> Callable[[msgspec.Raw], Awaitable[bytes]]:
    read = READ_ARGUMENTS[name]

    async def answer(body: msgspec.Raw) -> bytes:
        return encode(await operation(*read(body)))

    return answer
