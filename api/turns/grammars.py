"""The grammar of a request's answer, made and compiled off the event loop, within a time.

Each caller has one grammar compiled at a time, and its others wait in its own line: whoever sends many hard schemas
keeps nobody else waiting for longer than one of them takes."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from api.access.identity import Identity
from core.errors import InvalidRequest, Overloaded
from core.events import Grammar
from core.grammars.library import TOO_COMPLEX
from core.grammars.wanted import WantedAnswer
from core.ports import Renderer

_LONGEST_WAIT_S: Final = 20.0
_LONGEST_S: Final = 60.0  # compiling has a bound of its own, which says more; the first reads the tokenizer, too
_LONGEST_LINE: Final = 256  # an address may have as many connections
_RETRY_AFTER_S: Final = 5
_compilers: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="grammars")  # apart from what others use


class _Line:
    """The requests of one caller that want a grammar; the one that holds `head` has its own compiled."""

    def __init__(self) -> None:
        self.head = asyncio.Lock()
        self.length = 0


_lines: Final[dict[tuple[asyncio.AbstractEventLoop, tuple[str | None, ...]], _Line]] = {}


async def grammar_of(
    renderer: Renderer, wanted: WantedAnswer, prompt_token_ids: Sequence[int], identity: Identity, scope: str
) -> Grammar:
    """Return the grammar; `identity` says whose line the request waits in, `scope` whose grammars are known.

    Raises InvalidRequest naming the field at fault, also where compiling takes too long; Overloaded where waiting for
    it does, or where too many requests of the same caller wait already."""
    loop, begun, is_begun = asyncio.get_running_loop(), asyncio.Event(), False

    def compiled() -> Grammar:
        loop.call_soon_threadsafe(begun.set)
        return renderer.grammar(wanted, prompt_token_ids, scope)

    with _in_line(identity) as head:
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S) as limit, head:
                made = loop.run_in_executor(_compilers, compiled)
                try:
                    is_begun = await begun.wait()
                    limit.reschedule(loop.time() + _LONGEST_S)
                    return await made
                finally:
                    made.cancel()  # nobody waits for it any more; no harm once it is done
        except TimeoutError as error:
            raise _too_slow(wanted.field) if is_begun else _busy() from error


@contextmanager
def _in_line(identity: Identity) -> Iterator[asyncio.Lock]:
    """Stand in the caller's line. Raises Overloaded where it is too long."""
    key = asyncio.get_running_loop(), (identity.namespace, identity.key_id, identity.user)
    line = _lines.setdefault(key, _Line())
    if line.length >= _LONGEST_LINE:
        raise _busy()
    line.length += 1
    try:
        yield line.head
    finally:
        line.length -= 1
        if not line.length:
            del _lines[key]


def _too_slow(field: str) -> InvalidRequest:
    what = f"{field}: its grammar was not ready after {_LONGEST_S:.0f} s of compiling"
    return InvalidRequest(what, param=field, code=TOO_COMPLEX)


def _busy() -> Overloaded:
    return Overloaded("too many grammars of answers wait to be compiled; try again in a moment", _RETRY_AFTER_S)
