"""The place of a turn in its session's tree, and the prompt that continues its parent's very tokens."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec
from prometheus_client import Counter

from api.access.services import ApiServices
from api.http.background import on_a_thread
from api.turns.histories.retold import marks_in
from api.turns.histories.told_conversations import conversation_in
from api.turns.intake import Intake
from api.turns.lookup import read
from api.turns.rendering import Rendering
from api.turns.transcripts import Transcript
from core.errors import Forbidden, StoreUnavailable
from core.events import Completion
from core.ids import GroupId, InferenceId, Namespace, SessionId, new_session_id
from core.ports import TokenChain
from core.store.work import View
from core.telemetry import BRANCHES

How = Literal["root", "continued", "branch", "retold", "rewritten"]


class SessionPosition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The place of a turn.

    `how` is root (nobody has spoken before), continued (the parent's first child), branch (another child of it, or a
    request of the client for itself), retold (marks show the parent in a history that is not its own: the prompt is
    rendered afresh), or rewritten (the model has spoken before, but nobody knows where; rendered afresh)."""

    session_id: SessionId
    parent_id: InferenceId | None
    turn_index: int
    how: How
    prompt_token_ids: tuple[int, ...]
    known_tokens: int = 0  # of the prompt: those that it shares with the turn that it continues


async def find_place(
    services: ApiServices,
    rendering: Rendering,
    intake: Intake,
    group_id: GroupId,
    transcript: Transcript,
    tools: Sequence[Mapping[str, Any]],
    marks: Sequence[str],
    begun: SessionId | None = None,
    after: Completion | None = None,
) -> SessionPosition:
    """Find the place of a chat turn.

    `marks`: those of `marks_shown`; `begun`: the session of an earlier try of the same request; `after`: the turn
    behind which the client says that it stands, and with which the history begins.

    Raises InvalidRequest naming a message that cannot be rendered, Forbidden."""
    messages = transcript.messages
    await _check_session(services, intake)
    hint = await _hinted(services, intake)
    if after is not None:
        chain = await _find_after(services, intake.identity.namespace, after, transcript)
    else:
        chain = await _find_chain(services, intake, hint, transcript) if transcript.answers else None
    if chain is None:
        known = chain_of(after, 0) if after is not None else await _find_retold(services, intake, marks)
        before: How = "rewritten" if transcript.answers else "root"
        place = SessionPosition(
            session_id=intake.session_id or (known.session_id if known else hint or begun) or new_session_id(),
            parent_id=known.inference_id if known else None,
            turn_index=_turn_index(transcript, known),
            how="retold" if known else before,
            prompt_token_ids=await rendering.render(messages, tools),
        )
    else:
        turn_index = _turn_index(transcript, chain)
        place = await _after(services, rendering, intake, group_id, chain, turn_index, messages)
    _count_of(place.how).inc()
    return place


@cache
def _count_of(how: How) -> Counter:
    return BRANCHES.labels(how)


def _turn_index(transcript: Transcript, parent: TokenChain | None) -> int:
    """Return how many answers came before: those in the history, or more where a summary took their place."""
    return max(len(transcript.answers), parent.turn_index + 1 if parent is not None else 0)


async def place_text(
    services: ApiServices, rendering: Rendering, intake: Intake, prompt: str, suffix: str | None
) -> SessionPosition:
    """Place a raw completion, which is always a root.

    Raises Forbidden, InvalidRequest for a model without fill-in-the-middle."""
    await _check_session(services, intake)
    return SessionPosition(
        session_id=intake.session_id or new_session_id(),
        parent_id=None,
        turn_index=0,
        how="root",
        prompt_token_ids=await rendering.render_text(prompt, suffix),
    )


async def _check_session(services: ApiServices, intake: Intake) -> None:
    """Raise Forbidden when a key that speaks for one user names a session of another.

    Feedback on a session counts for all its turns. The store knows whose it is; for the last moments live state
    does."""
    if intake.session_id is not None and await _is_of_another(services, intake, intake.session_id):
        raise _forbidden()


async def _is_of_another(services: ApiServices, intake: Intake, session_id: SessionId) -> bool:
    """Return whether a session is another user's than the one for whom the key speaks, if it is for one alone.

    To look takes nothing: a request that is refused must not keep its user out of the session that it named."""
    namespace, user = intake.identity.namespace, intake.identity.user
    if user is None:
        return False
    try:
        taken = await read(services, lambda view: view.turns.has_others(namespace, session_id, user))
    except StoreUnavailable:
        taken = False
    return taken or await services.live_state.claim_of(namespace, owner_key(session_id)) not in (user, None)


async def take_session(services: ApiServices, intake: Intake, session_id: SessionId) -> None:
    """Take a session that the request named for the user of its key, if it speaks for one, until the store knows it.

    It comes last, when nothing is left for which the request is refused. Raises Forbidden."""
    namespace, user = intake.identity.namespace, intake.identity.user
    if user is None or session_id != intake.named_session:
        return
    if await services.live_state.claim(namespace, owner_key(session_id), user) not in (user, None):
        raise _forbidden()


def owner_key(session_id: SessionId) -> str:
    """Return the key under which live state knows whose session it is, before the store does."""
    return f"session:{session_id}"


def _forbidden() -> Forbidden:
    return Forbidden("session_id: a session of another user", param="session_id", code="another_user")


async def _hinted(services: ApiServices, intake: Intake) -> SessionId | None:
    """Return the session that a header of the client's own names, unless an id is given, or it is another user's."""
    hint = intake.session_hint if intake.session_id is None else None
    return None if hint is None or await _is_of_another(services, intake, hint) else hint


async def _after(
    services: ApiServices,
    rendering: Rendering,
    intake: Intake,
    group_id: GroupId,
    chain: TokenChain,
    turn_index: int,
    messages: Sequence[Mapping[str, Any]],
) -> SessionPosition:
    """Return the position after the turn of `chain`.

    `turn_index` is beyond the next one where the model spoke in between and nobody kept what it said."""
    namespace = intake.identity.namespace
    answer, new = messages[chain.num_messages - 1], messages[chain.num_messages :]
    is_turn = intake.purpose == "turn"  # what a client asks for itself stands beside the conversation
    first = await services.live_state.claim(namespace, f"child:{chain.inference_id}", group_id) if is_turn else ""
    return SessionPosition(
        session_id=chain.session_id,
        parent_id=chain.inference_id,
        turn_index=turn_index,
        how="continued" if first in (group_id, None) else "branch",
        prompt_token_ids=await rendering.extend(chain.token_ids, new, answer.get("tool_calls", ())),
        known_tokens=len(chain.token_ids),
    )


async def _find_chain(
    services: ApiServices, intake: Intake, hint: SessionId | None, transcript: Transcript
) -> TokenChain | None:
    """Return the chain of the longest known prefix.

    It is sought only in the client's session if it gives one; in a hinted session first, and then everywhere."""
    if hint is not None:
        chain = await _find_within(services, intake.identity.namespace, hint, transcript)
        if chain is not None:
            return chain
    return await _find_within(services, intake.identity.namespace, intake.session_id, transcript)


async def _find_after(
    services: ApiServices, namespace: Namespace, after: Completion, transcript: Transcript
) -> TokenChain | None:
    """Return the chain of a turn that the client names, or of a later one that goes on from it.

    Its words are not looked up where there is no more than them: others may have been told the same. None: its words
    are there in another form, as behind other instructions."""
    counts = {digest: count for count, digest in transcript.answers}
    num_messages = counts.get(after.transcript_digest or "")
    if num_messages is None:
        return None
    named, answers_after = chain_of(after, num_messages), [n for n in counts.values() if n > num_messages]
    if not answers_after:
        return named
    found = await _find_within(services, namespace, after.session_id, transcript)
    if found is None or found.num_messages <= num_messages:
        return named
    try:
        goes_on = await read(services, lambda view: _goes_on(view, namespace, found, after))
    except StoreUnavailable:
        goes_on = False  # it stands behind the one that was named, which is true in any case
    return found if goes_on else named


def _goes_on(view: View, namespace: Namespace, chain: TokenChain, after: Completion) -> bool:
    """Return whether a turn has another one of its session somewhere before it."""
    parents = view.turns.parents(namespace, after.session_id)
    at = parents.pop(chain.inference_id, None)  # each is passed once, whatever the log says of parents
    while at is not None and at != after.inference_id:
        at = parents.pop(at, None)
    return at is not None


async def _find_within(
    services: ApiServices, namespace: Namespace, session_id: SessionId | None, transcript: Transcript
) -> TokenChain | None:
    """Return the chain of the longest known prefix within a session; None: in any.

    Live state may have lost any of its entries, so a shorter prefix that it knows does not mean that nobody knows a
    longer one: only the store can tell."""
    digests = transcript.candidates()
    keys = digests if session_id is None else [_within(session_id, digest) for digest in digests]
    chain = await services.live_state.get_chain(namespace, keys)
    counts = {digest: count for count, digest in transcript.answers}
    longer = [digest for digest in digests if chain is None or counts[digest] > chain.num_messages]
    if not longer:
        return chain
    try:
        turn = await on_a_thread(_find_turn, services, namespace, longer, session_id)
    except StoreUnavailable:
        return chain  # the turn is served all the same; where there is none, it counts as rewritten
    return chain if turn is None else chain_of(turn, counts[turn.transcript_digest or ""])


def marks_shown(intake: Intake, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the marks by which a history shows its turns, those in a session that the client names first.

    They are only of that session if the client gives its id."""
    told = messages if intake.purpose == "turn" else [*messages, *conversation_in(messages)]
    places = dict.fromkeys((intake.named_session, intake.session_id))
    return [mark for place in places for mark in marks_in(intake.speaker, place, told)]


async def _find_retold(services: ApiServices, intake: Intake, marks: Sequence[str]) -> TokenChain | None:
    """Return the turn that a rewritten history still shows, of the client's session if it gives one."""
    if not marks:
        return None
    chain = await services.live_state.get_chain(intake.identity.namespace, marks)
    is_there = chain is not None and intake.session_id in (None, chain.session_id)
    return chain if is_there else None


def _find_turn(
    services: ApiServices, namespace: Namespace, digests: Sequence[str], session_id: SessionId | None
) -> Completion | None:
    with services.store.look() as view:
        return view.turns.find_transcript(namespace, digests, session_id)


def chain_of(turn: Completion, num_messages: int) -> TokenChain:
    return TokenChain(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        turn_index=turn.turn_index,
        num_messages=num_messages,
        token_ids=turn.prompt_token_ids + turn.token_ids,
    )


async def make_known(services: ApiServices, intake: Intake, inference_id: InferenceId, session_id: SessionId) -> None:
    """Put a turn into live state whose client is about to learn its id: feedback may come before the turn's end."""
    live_state, namespace = services.live_state, intake.identity.namespace
    if intake.user_id is not None:  # keys that are bound to a user name no other's
        await live_state.claim(namespace, speaker_key(inference_id), intake.user_id)
        await live_state.claim(namespace, owner_key(session_id), intake.user_id)
    await live_state.put_inference(namespace, inference_id, session_id)


async def remember(services: ApiServices, turn: Completion, marks: Sequence[str] = ()) -> None:
    """Put the turn into live state, so that the next turn, and feedback, find it before the store has it.

    `marks` are what a rewritten history may show of it."""
    for call in turn.tool_calls:
        await services.live_state.claim(turn.namespace, call_key(call.id), turn.inference_id)
    if turn.transcript_digest is None:
        await services.live_state.put_inference(turn.namespace, turn.inference_id, turn.session_id)
        return
    digests = turn.transcript_digest, _within(turn.session_id, turn.transcript_digest), *marks
    await services.live_state.put_chain(turn.namespace, digests, chain_of(turn, len(turn.messages) + 1))


def speaker_key(inference_id: InferenceId) -> str:
    """Return the key under which live state knows whose turn it is, before the store does."""
    return f"speaker:{inference_id}"


def call_key(call_id: str) -> str:
    """Return the key under which live state knows which turn made the call."""
    return f"call:{call_id}"


def _within(session_id: SessionId, digest: str) -> str:
    return f"{session_id}\0{digest}"
