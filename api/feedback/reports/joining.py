"""The turn that somebody's event speaks of: by an id, or where exactly one turn fits; never by guess.

Editors and agents know an answer by its id, by the id of a tool call in it, or only by their own name of the
conversation. Their traces say which of their names belong to which answer (`link`)."""

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from api.access.context import Context
from api.access.identity import Identity
from api.feedback.targets import NamedTurn, has_session
from api.turns.answer_ids import inference_in
from api.turns.lookup import look_up, read_all
from api.turns.session_ids import is_id
from api.turns.sessions import call_key
from core.events import Completion
from core.ids import InferenceId, SessionId, is_uuid
from core.store.work import View

_SEVERAL = "several"
_LINK, _LINKED_TWICE = "link", "link twice"
_CONVERSATION = "conversation:"


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


async def join(context: Context, identity: Identity, clues: Clues) -> Joined:
    """Return what the event is about. Raises Unjoined, StoreUnavailable."""
    if clues.about_session:
        return Joined(session_id=await _session_of(context, identity, clues), by="conversation")
    named = await _by_answer(context, identity, clues)
    if named is not None:
        return named
    if clues.tool_call is not None:
        return await _by_call(context, identity, clues, clues.tool_call)
    if clues.text is not None:
        return await _by_text(context, identity, clues, clues.text)
    if clues.answers:  # it is about an answer of somebody else, whenever and wherever that was
        raise Unjoined("unknown_id")
    if clues.span is not None and (linked := await _linked(context, identity, clues.span)) is not None:
        return Joined(inference_id=InferenceId(linked), by="link")
    if clues.conversation is None:
        raise Unjoined("no_id")
    return await _by_time(context, identity, clues)


async def _by_answer(context: Context, identity: Identity, clues: Clues) -> Joined | None:
    """Return the answer that one of the ids names. Raises Unjoined for one of ours that does not exist."""
    ours = False
    for name in clues.answers:
        own = _own_id(name)
        if own is not None and await NamedTurn(context.services, identity.namespace, own).exists():
            return Joined(inference_id=own, by="answer")
        linked = await _linked(context, identity, name)
        if linked is not None:
            return Joined(inference_id=InferenceId(linked), by="link")
        ours = ours or own not in (None, name)
    if ours:
        raise Unjoined("unknown_id")
    return None


def _own_id(name: str) -> InferenceId | None:
    own = inference_in(name).lower()
    return InferenceId(own) if is_uuid(own) else None


async def _by_call(context: Context, identity: Identity, clues: Clues, call_id: str) -> Joined:
    """Return the turn that made the call. Our ids of calls are random: two turns never share one."""

    def made(turn: Completion) -> bool:
        return any(call.id == call_id for call in turn.tool_calls)

    known = await context.services.live_state.claim_of(identity.namespace, call_key(call_id))
    if known is not None:
        return Joined(inference_id=InferenceId(known), by="tool_call")
    session_id = None if clues.conversation is None else await _known_session(context, identity, clues.conversation)
    turns = await _turns(context, identity, clues, session_id, made, only=False)
    return _the_only_one(turns, by="tool_call", none="unknown_tool_call")


async def _by_text(context: Context, identity: Identity, clues: Clues, text: str) -> Joined:
    """Return the key's own recent turn that said exactly this; where several did, the one that was asked the same."""

    def said(turn: Completion) -> bool:
        return turn.text == text and identity.made(turn)

    if not text.strip():
        raise Unjoined("no_text")
    turns = await _turns(context, identity, clues, None, said)
    if len(turns) > 1 and clues.prompt is not None:
        turns = [turn for turn in turns if turn.messages[0].get("content") == clues.prompt]
    return _the_only_one(turns, by="text", none="unknown_text")


async def _by_time(context: Context, identity: Identity, clues: Clues) -> Joined:
    """Return the only turn of the conversation that began within the window before the event."""
    session_id = await _session_of(context, identity, clues)
    turns = await _turns(context, identity, clues, session_id, _is_answer, by_time=True)
    return _the_only_one(turns, by="conversation", none="no_turn")


def _is_answer(turn: Completion) -> bool:
    return turn.purpose in ("turn", "suggestion")


def _the_only_one(turns: list[Completion], *, by: str, none: str) -> Joined:
    if len(turns) != 1:
        raise Unjoined("ambiguous" if turns else none)
    return Joined(inference_id=turns[0].inference_id, by=by)


async def _turns(
    context: Context,
    identity: Identity,
    clues: Clues,
    session_id: SessionId | None,
    fits: Callable[[Completion], bool],
    *,
    by_time: bool = False,
    only: bool = True,
) -> list[Completion]:
    """Return the turns that fit, of the session or else of the namespace, from the window before the event.

    Unless it is to be the `only` one, the first that is found will do: others may be on their way to the store. Raises
    Unjoined where there are more turns than are looked at, StoreUnavailable."""
    settings, namespace = context.services.settings.feedback, identity.namespace
    after, most = _before(clues.at, settings.join_window_s), settings.join_turns
    until = clues.at if by_time else context.services.clock.now()  # a client's clock may be behind

    def find(turns: Iterable[Completion]) -> list[Completion] | None:
        seen = [turn for turn in turns if after <= turn.received_at <= until]
        if len(seen) > most:
            raise Unjoined("too_many_turns")
        return [turn for turn in seen if fits(turn)] or None

    def query(view: View) -> list[Completion] | None:
        if session_id is not None:
            return find(view.turns.of_session(namespace, session_id))
        return find(view.turns.recent(namespace, after, until, most + 1))

    return await (read_all if only else look_up)(context.services, query) or []


def _before(at: datetime, seconds: float) -> datetime:
    """Return the moment so many seconds earlier, or the calendar's first."""
    try:
        return at - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


async def _session_of(context: Context, identity: Identity, clues: Clues) -> SessionId:
    if clues.conversation is None:
        raise Unjoined("no_id")
    found = await _known_session(context, identity, clues.conversation)
    if found is None:
        raise Unjoined("unknown_conversation")
    return found


async def _known_session(context: Context, identity: Identity, conversation: str) -> SessionId | None:
    """Return the session that the conversation is: of the same id, or of an answer that traces put into it."""
    own = SessionId(conversation)
    if is_id(conversation) and await has_session(context.services, identity.namespace, own):
        return own
    linked = await _linked(context, identity, _CONVERSATION + conversation)
    return None if linked is None else SessionId(linked)


# ------------------------------------------------------------------------------------------------ links


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a client that belong to the answer which one of the ids `answers` names.

    `within`: its name of the conversation, or ""."""

    answers: tuple[str, ...]
    names: tuple[str, ...] = ()
    within: str = ""


async def link(context: Context, identity: Identity, links: Iterable[Link]) -> None:
    """Remember the names of those answers that are the caller's own. Raises StoreUnavailable."""
    wanted = [(list(filter(None, map(_own_id, each.answers))), each) for each in links]
    own = await _own_turns(context, identity, {name for names, _ in wanted for name in names})
    meant: dict[tuple[str, str], None] = {}  # each once: the spans of a conversation all name it
    for names, each in wanted:
        turn = next((own[name] for name in names if name in own), None)
        if turn is not None:
            meant |= dict.fromkeys((name, turn.inference_id) for name in each.names)
            if each.within:
                meant[_CONVERSATION + each.within, turn.session_id] = None
    for name, target in meant:
        await _remember(context, identity, name, target)


async def _own_turns(
    context: Context, identity: Identity, names: Collection[InferenceId]
) -> dict[InferenceId, Completion]:
    """Return the caller's own of these turns, waiting for the store where it lacks some."""
    found: dict[InferenceId, Completion] = {}

    def query(view: View) -> bool | None:
        found.update(view.turns.get_many(set(names) - found.keys()))
        return len(found) == len(names) or None

    if names:
        await look_up(context.services, query)
    return {name: turn for name, turn in found.items() if turn.namespace == identity.namespace and identity.made(turn)}


async def _remember(context: Context, identity: Identity, name: str, target: str) -> None:
    live_state, namespace = context.services.live_state, identity.namespace
    if await live_state.claim(namespace, _key(_LINK, identity, name), target) not in (target, None):
        await live_state.claim(namespace, _key(_LINKED_TWICE, identity, name), _SEVERAL)


async def _linked(context: Context, identity: Identity, name: str) -> str | None:
    """Return what the name was linked to; None for nothing. Raises Unjoined for a name of several."""
    live_state, namespace = context.services.live_state, identity.namespace
    target = await live_state.claim_of(namespace, _key(_LINK, identity, name))
    twice = _key(_LINKED_TWICE, identity, name)
    if target is not None and await live_state.claim_of(namespace, twice) is not None:
        raise Unjoined("ambiguous")
    return target


def _key(kind: str, identity: Identity, name: str) -> str:
    """Return the key of a link, which holds for whoever told it alone: others may use the same names."""
    return "\0".join((kind, identity.user or identity.by, name))
