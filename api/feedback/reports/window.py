"""The turns that the events of one request may speak of: read from the store once, however many events there are."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from api.access.context import ApiContext
from api.access.identity import Identity
from api.feedback.targets import is_stored
from api.turns.lookup import Query, read, read_all
from core.errors import StoreUnavailable
from core.ids import InferenceId, SessionId
from core.store.turns import MadeTurn, Maker, SaidTurn, first_id
from core.store.work import View

T = TypeVar("T")
M = TypeVar("M", bound=MadeTurn)


class TooManyTurns(Exception):
    """There are more turns than are looked at: one that fits may not be the only one."""


class JoinWindow:
    """The turns that a caller's events may speak of, from `api.feedback.join_window_s` before the first event to now.

    What is asked for is read at the first use and kept for the request: the turns of the namespace, and of each
    conversation, once. Whatever is to be the only one is looked for in a store that has all that the log had when it
    was first asked; the window waits for that once."""

    def __init__(
        self,
        context: ApiContext,
        identity: Identity,
        earliest: datetime,
        answers: Collection[InferenceId] = (),
        sessions: Collection[SessionId] = (),
    ) -> None:
        """Make a window for events since `earliest` that name these answers and these sessions."""
        self._services, self._identity = context.services, identity
        self._settings = context.services.settings.feedback
        self._after = before(earliest, self._settings.join_window_s)
        self._answers, self._sessions = frozenset(answers), frozenset(sessions)
        self._known: dict[object, Any] = {}
        self._reading = asyncio.Lock()

    async def has_answer(self, inference_id: InferenceId) -> bool:
        """Return whether the namespace has the turn, one of those that were said to be named.

        Raises StoreUnavailable."""
        live_state, namespace = self._services.live_state, self._identity.namespace
        if await live_state.get_session(namespace, inference_id) is not None:
            return True

        def query(view: View) -> set[InferenceId]:
            return view.turns.which_of(namespace, self._answers)

        return await is_stored(self._services, lambda: self._found_among("answers", inference_id, query))

    async def has_session(self, session_id: SessionId) -> bool:
        """Return whether the namespace has the session, one of those that were said to be named.

        Raises StoreUnavailable."""
        live_state, namespace = self._services.live_state, self._identity.namespace
        if await live_state.has_session(namespace, session_id):
            return True

        def query(view: View) -> set[SessionId]:
            return view.turns.sessions_among(namespace, self._sessions)

        return await is_stored(self._services, lambda: self._found_among("sessions", session_id, query))

    async def _found_among(self, what: str, name: T, query: Query[set[T]]) -> bool | None:
        """Return True where the query finds the name, at once or in a store that has all; else None."""
        for is_whole in (False, True):
            if name in await self._read(what, query, is_whole=is_whole):
                return True
        return None

    async def turns(self, at: datetime, until: datetime, *, is_whole: bool = True) -> list[SaidTurn]:
        """Return the caller's own turns that were received from the window before `at` to `until`, newest first.

        How many others have had meanwhile is no matter: else whoever asks often would keep all events from being
        joined. `is_whole`: none of them may be on its way to the store. Raises TooManyTurns, StoreUnavailable."""
        turns = await self._made(self._identity.maker, is_whole=is_whole)
        return self._between(at, until, turns, turns)

    async def turns_of(
        self, session_id: SessionId, at: datetime, until: datetime, *, is_whole: bool = True
    ) -> list[MadeTurn]:
        """Return the same of a session."""
        turns = await self._made_in(session_id, is_whole=is_whole)
        return self._between(at, until, turns, turns)

    async def _made(self, maker: Maker | None, *, is_whole: bool) -> list[SaidTurn]:
        namespace, most = self._identity.namespace, self._settings.join_turns

        def query(view: View) -> list[SaidTurn]:
            return view.turns.said_since(namespace, self._after, most + 1, maker)

        return await self._read(("said", maker), query, is_whole=is_whole)

    async def _made_in(self, session_id: SessionId, *, is_whole: bool) -> list[MadeTurn]:
        namespace, most = self._identity.namespace, self._settings.join_turns

        def query(view: View) -> list[MadeTurn]:
            return view.turns.made_since(namespace, session_id, self._after, most + 1)

        return await self._read(("turns", session_id), query, is_whole=is_whole)

    async def calling(
        self, call_id: str, session_id: SessionId | None, at: datetime, until: datetime, *, is_whole: bool
    ) -> list[MadeTurn]:
        """Return those of the turns that made the call: of the session, or else of the namespace.

        Turns are looked through once for all calls: as many events as a request may have would each pass all of them.
        Raises as `turns`."""
        place = "calls", session_id, is_whole
        turns: Sequence[MadeTurn]
        if session_id is None:
            turns = await self._made(None, is_whole=is_whole)
        else:
            turns = await self._made_in(session_id, is_whole=is_whole)
        if place not in self._known:
            self._known[place] = _by_call(turns)
        known: dict[str, list[MadeTurn]] = self._known[place]
        return self._between(at, until, turns, known.get(call_id, ()))

    def _between(self, at: datetime, until: datetime, turns: Sequence[MadeTurn], wanted: Sequence[M]) -> list[M]:
        """Return those of the wanted turns that are in the window. Raises TooManyTurns where not all were read."""
        most, after = self._settings.join_turns, before(at, self._settings.join_window_s)
        if len(turns) > most and turns[most].inference_id >= first_id(after):
            raise TooManyTurns
        return [turn for turn in wanted if after <= turn.received_at <= until]

    async def _read(self, what: object, query: Query[T], *, is_whole: bool) -> T:
        """Return what the query finds, on a store that has all where `is_whole`. Raises StoreUnavailable."""
        if is_whole:  # the store never takes anything back: once it has all, every later query sees it
            await self._once("whole", lambda: read_all(self._services, lambda _: None))
        return await self._once((what, is_whole), lambda: read(self._services, query))

    async def _once(self, what: object, find: Callable[[], Awaitable[T]]) -> T:
        """Return what was found at the first time. Raises StoreUnavailable, then also without asking again."""
        async with self._reading:
            if what not in self._known:
                try:
                    self._known[what] = await find()
                except StoreUnavailable as error:  # the request fails as a whole, and will come again
                    self._known[what] = error
        found = self._known[what]
        if isinstance(found, StoreUnavailable):
            raise found
        return cast("T", found)


def _by_call(turns: Sequence[MadeTurn]) -> dict[str, list[MadeTurn]]:
    """Return the turns that made each call, by its id."""
    made: dict[str, list[MadeTurn]] = {}
    for turn in turns:
        for call_id in dict.fromkeys(call.id for call in turn.tool_calls):
            made.setdefault(call_id, []).append(turn)
    return made


def before(at: datetime, seconds: float) -> datetime:
    """Return the moment so many seconds earlier, or the calendar's first."""
    try:
        return at - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
