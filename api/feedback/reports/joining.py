"""Finds the turn that an event is about: by an id, or because exactly one turn fits; it never guesses.

Editors and agents know an answer by its id, by the id of a tool call in it, or only by their own name for the
conversation. Their traces say which of their names belong to which answer (`links`)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.feedback.private.redacted import are_the_same
from api.feedback.reports.links import Ambiguous, linked, linked_conversation, own_id
from api.feedback.reports.window import JoinWindow, TooManyTurns
from api.turns.lookup import read
from api.turns.session_ids import is_id
from api.turns.sessions import call_key
from core.events import Completion
from core.ids import InferenceId, SessionId
from core.store.turns import MadeTurn, SaidTurn


class Clues(msgspec.Struct, frozen=True, kw_only=True):
    """What an event says of the answer that it is about.

    `answers`: ids of it, ours or its client's; `span`: that in which it was asked for; `text`: all of its words; `at`:
    when the event happened."""

    answers: tuple[str, ...] = ()
    span: str | None = None
    tool_call: str | None = None
    conversation: str | None = None
    text: str | None = None
    prompt: str | None = None
    about_session: bool = False
    at: datetime


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The turn, or the session, and how it was found."""

    inference_id: InferenceId | None = None
    session_id: SessionId | None = None
    by: str


class Unjoined(Exception):
    """No turn can be named; `reason` is a word for the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Joining:
    """The joining of one request's events, which look at the same turns."""

    def __init__(self, context: ApiContext, identity: Identity, events: Iterable[Clues]) -> None:
        """Make it for all that the request tells of."""
        clues = list(events)
        self._context, self._identity = context, identity
        self._live_state, self._namespace = context.services.live_state, identity.namespace
        earliest = min((each.at for each in clues), default=context.services.clock.now())
        named = [own for each in clues for name in each.answers if (own := own_id(name)) is not None]
        sessions = [SessionId(each.conversation) for each in clues if each.conversation and is_id(each.conversation)]
        self._window = JoinWindow(context, identity, earliest, named, sessions)

    async def join(self, clues: Clues) -> Joined:
        """Return what one of the events is about. Raises Unjoined, StoreUnavailable."""
        if clues.about_session:
            return Joined(session_id=await self._session_of(clues), by="conversation")
        named = await self._by_answer(clues)
        if named is not None:
            return named
        if clues.tool_call is not None:
            return await self._by_call(clues, clues.tool_call)
        if clues.text is not None:
            return await self._by_text(clues, clues.text)
        if clues.answers:  # it is about an answer of somebody else, whenever and wherever that was
            raise Unjoined("unknown_id")
        if clues.span is not None and (target := await self._linked(clues.span)) is not None:
            return Joined(inference_id=InferenceId(target), by="link")
        if clues.conversation is None:
            raise Unjoined("no_id")
        return await self._by_time(clues)

    async def _by_answer(self, clues: Clues) -> Joined | None:
        """Return the answer that one of the ids names. Raises Unjoined for one of ours that does not exist."""
        ours = False
        for name in clues.answers:
            own = own_id(name)
            if own is not None and await self._window.has_answer(own):
                return Joined(inference_id=own, by="answer")
            target = await self._linked(name)
            if target is not None:
                return Joined(inference_id=InferenceId(target), by="link")
            ours = ours or own not in (None, name)
        if ours:
            raise Unjoined("unknown_id")
        return None

    async def _by_call(self, clues: Clues, call_id: str) -> Joined:
        """Return the turn that made the call. Our ids of calls are random: two turns never share one.

        So the first that is found will do, whatever else is on its way to the store."""
        known = await self._live_state.claim_of(self._namespace, call_key(call_id))
        if known is not None:
            return Joined(inference_id=InferenceId(known), by="tool_call")
        session_id = None if clues.conversation is None else await self._known_session(clues.conversation)
        made: list[MadeTurn] = []
        for is_whole in (False, True):
            with _told():
                made = await self._window.calling(call_id, session_id, clues.at, self._now(), is_whole=is_whole)
            if made:
                break
        return _the_only_one(made, by="tool_call", none="unknown_tool_call")

    async def _by_text(self, clues: Clues, text: str) -> Joined:
        """Return the key's own recent turn that said exactly this; where several did, the one asked the same."""
        if not text.strip():
            raise Unjoined("no_text")
        with _told():
            turns = await self._window.turns(clues.at, self._now())
        made = [turn for turn in turns if self._identity.made(turn)]
        said = [turn for turn in made if are_the_same(self._context, self._identity, turn, turn.text, text)]
        if len(said) > 1 and clues.prompt is not None:
            said = await self._asked(said, clues.prompt)
        return _the_only_one(said, by="text", none="unknown_text")

    async def _asked(self, turns: list[SaidTurn], prompt: str) -> list[SaidTurn]:
        """Return those of the turns whose request began with these words."""
        ids = [turn.inference_id for turn in turns]
        whole = await read(self._context.services, lambda view: view.turns.get_many(ids))
        return [turn for turn in turns if self._begins_with(turn, whole.get(turn.inference_id), prompt)]

    def _begins_with(self, said: SaidTurn, turn: Completion | None, prompt: str) -> bool:
        first = turn.messages[0].get("content") if turn is not None and turn.messages else None
        return isinstance(first, str) and are_the_same(self._context, self._identity, said, first, prompt)

    async def _by_time(self, clues: Clues) -> Joined:
        """Return the only turn of the conversation that began within the window before the event."""
        session_id = await self._session_of(clues)
        with _told():
            turns = await self._window.turns_of(session_id, clues.at, clues.at)
        answers = [turn for turn in turns if turn.purpose in ("turn", "suggestion")]
        return _the_only_one(answers, by="conversation", none="no_turn")

    def _now(self) -> datetime:
        """Return the end of a window that an event's own time does not bound: a client's clock may be behind."""
        return self._context.services.clock.now()

    async def _session_of(self, clues: Clues) -> SessionId:
        if clues.conversation is None:
            raise Unjoined("no_id")
        found = await self._known_session(clues.conversation)
        if found is None:
            raise Unjoined("unknown_conversation")
        return found

    async def _known_session(self, conversation: str) -> SessionId | None:
        """Return the session that the conversation is: of the same id, or of an answer that traces put into it."""
        own = SessionId(conversation)
        if is_id(conversation) and await self._window.has_session(own):
            return own
        target = await self._linked(linked_conversation(conversation))
        return None if target is None else SessionId(target)

    async def _linked(self, name: str) -> str | None:
        with _told():
            return await linked(self._context, self._identity, name)


@contextmanager
def _told() -> Iterator[None]:
    """Name the reason where links or turns do not say what is meant."""
    try:
        yield
    except Ambiguous:
        raise Unjoined("ambiguous") from None
    except TooManyTurns:
        raise Unjoined("too_many_turns") from None


def _the_only_one(turns: Sequence[MadeTurn], *, by: str, none: str) -> Joined:
    if len(turns) != 1:
        raise Unjoined("ambiguous" if turns else none)
    return Joined(inference_id=turns[0].inference_id, by=by)
