"""The grammar of a request's answer, made and compiled off the event loop, within a time.

Each caller has one grammar compiled at a time, and its others wait in its own line: whoever sends many hard schemas
keeps nobody else waiting for longer than one of them takes."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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


_Caller = tuple[asyncio.AbstractEventLoop, tuple[str | None, ...]]
_lines: Final[dict[_Caller, _Line]] = {}


class _Place:
    """One request's place in its caller's line. Raises Overloaded where that is too long."""

    def __init__(self, identity: Identity) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller: _Caller = self._loop, identity.caller
        self._line = _lines.setdefault(self._caller, _Line())
        if self._line.length >= _LONGEST_LINE:
            raise _busy()
        self._line.length += 1
        self._is_first = False

    async def come_first(self) -> None:
        await self._line.head.acquire()
        self._is_first = True

    def leave_after(self, work: "Future[Grammar] | None") -> None:
        """Leave once the work is over: what has begun goes on, though nobody may wait for it any more."""
        if work is None or work.cancel() or work.done():
            self._leave()
        else:
            work.add_done_callback(self._leave_soon)

    def _leave_soon(self, _: "Future[Grammar]") -> None:
        try:
            self._loop.call_soon_threadsafe(self._leave)
        except RuntimeError:  # the loop has ended, and nobody stands in its lines any more
            _lines.pop(self._caller, None)

    def _leave(self) -> None:
        if self._is_first:
            self._line.head.release()
        self._line.length -= 1
        if not self._line.length:
            del _lines[self._caller]


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

    place, work = _Place(identity), None
    try:
        async with asyncio.timeout(_LONGEST_WAIT_S) as limit:
            await place.come_first()
            work = _compilers.submit(compiled)
            is_begun = await begun.wait()
            limit.reschedule(loop.time() + _LONGEST_S)
            return await asyncio.wrap_future(work)
    except TimeoutError as error:
        raise _too_slow(wanted.field) if is_begun else _busy() from error
    finally:
        place.leave_after(work)


def _too_slow(field: str) -> InvalidRequest:
    what = f"{field}: its grammar was not ready after {_LONGEST_S:.0f} s of compiling"
    return InvalidRequest(what, param=field, code=TOO_COMPLEX)


def _busy() -> Overloaded:
    return Overloaded("too many grammars of answers wait to be compiled; try again in a moment", _RETRY_AFTER_S)
