"""Checks of what an outcome is about: whether it exists in this namespace, and whether it has such a part."""

from collections.abc import Awaitable, Callable
from typing import Literal

from api.access.identity import Identity
from api.access.services import OK, ApiServices
from api.feedback.kept import last_word
from api.turns.lookup import Query, look_up, read
from api.turns.sessions import owner_key, speaker_key
from core.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable, Unfinished
from core.events import Completion, Outcome
from core.ids import InferenceId, Namespace, SessionId, is_uuid

Subject = Literal["inference", "session"]


class NamedTurn:
    """The turn that a request names: loaded at the first use, and kept for the rest of the request."""

    def __init__(self, services: ApiServices, namespace: Namespace, inference_id: InferenceId | None) -> None:
        """Name a turn; `inference_id` is None where the request names a session."""
        self._services = services
        self._namespace = namespace
        self.inference_id = inference_id
        self._turn: Completion | None = None

    async def load(self) -> Completion | None:
        """Return the turn, or None if there is none now. Raises StoreUnavailable.

        In both cases the next call asks again."""
        if self._turn is None and self.inference_id is not None:
            query = self._namespace, self.inference_id
            self._turn = await look_up(self._services, lambda view: view.turns.get(*query))
        return self._turn

    async def load_whole(self) -> Completion:
        """Return the turn. Raises NotFound, Unfinished for one whose answer is still being made, StoreUnavailable."""
        turn = await self.load()
        if turn is not None:
            return turn
        if await self.exists():
            raise Unfinished(f"the answer {self.inference_id} has not ended: what this is about may be still to come")
        raise NotFound(f"no inference {self.inference_id}", param="inference_id", code="unknown_inference")

    async def user(self) -> str | None:
        """Return the user that the turn was for, else its session; None where that is not known now."""
        if self.inference_id is None:
            return None
        speaker = await self._services.live_state.claim_of(self._namespace, speaker_key(self.inference_id))
        if speaker is not None:
            return speaker
        try:
            turn = await self.load()
        except StoreUnavailable:
            return None
        return None if turn is None else turn.user_id or turn.session_id

    async def is_of(self, identity: Identity) -> bool:
        """Return whether the turn is one of the user to whom the key is bound. Raises StoreUnavailable."""
        if self.inference_id is None or not is_uuid(self.inference_id):
            return False
        speaker = await self._services.live_state.claim_of(self._namespace, speaker_key(self.inference_id))
        if speaker is not None:
            return speaker == identity.user
        turn = await self.load()
        return turn is not None and identity.made(turn)

    async def exists(self) -> bool:
        """Return whether the turn exists. Raises StoreUnavailable."""
        if self._turn is not None:
            return True
        if self.inference_id is None or not is_uuid(self.inference_id):
            return False
        if await self._services.live_state.get_session(self._namespace, self.inference_id) is not None:
            return True
        return await is_stored(self._services, self.load)


async def find_subject(services: ApiServices, outcome: Outcome, named: NamedTurn) -> Subject:
    """Return whether the outcome is about an inference or a session.

    Raises NotFound for what this namespace does not have after `api.feedback.lookup_s`, StoreUnavailable."""
    if outcome.inference_id is not None:
        if not await named.exists():
            raise NotFound(f"no inference {outcome.inference_id}", param="inference_id", code="unknown_inference")
        return "inference"
    assert outcome.session_id is not None
    if not await has_session(services, outcome.namespace, outcome.session_id):
        raise NotFound(f"no session {outcome.session_id}", param="session_id", code="unknown_session")
    return "session"


async def has_session(services: ApiServices, namespace: Namespace, session_id: SessionId) -> bool:
    if await services.live_state.has_session(namespace, session_id):
        return True
    query = _session_of(namespace, session_id)
    return await is_stored(services, lambda: look_up(services, query))


def _session_of(namespace: Namespace, session_id: SessionId) -> Query[bool | None]:
    return lambda view: view.turns.has_session(namespace, session_id) or None


async def is_stored(services: ApiServices, load: Callable[[], Awaitable[object]]) -> bool:
    """Return whether the store has it, right after live state did not know it.

    Raises StoreUnavailable where live state could not be asked: another replica may have it in its spool, and only
    live state would tell."""
    heard = services.live_state.state == OK
    if await load() is not None:
        return True
    if not heard:
        raise StoreUnavailable("not found, and live state, which other replicas share, does not answer: try again")
    return False


async def check_is_own(
    services: ApiServices, identity: Identity, named: NamedTurn, session_id: SessionId | None
) -> None:
    """Check that a key which is bound to a user names only what is its own.

    Raises NotFound for what is another's, StoreUnavailable where nobody can say whose it is."""
    if identity.user is None:
        return
    if session_id is not None:
        await check_session_is_own(services, identity, session_id)
    elif named.inference_id is not None and is_uuid(named.inference_id) and not await named.is_of(identity):
        raise NotFound(f"no inference {named.inference_id}", param="inference_id", code="unknown_inference")


async def check_session_is_own(services: ApiServices, identity: Identity, session_id: SessionId) -> None:
    """Check that all turns of the session are the user's, since feedback on a session counts for each of its turns.

    Raises as `check_is_own`."""
    user = identity.user
    if user is None:
        return
    known = await look_up(services, _session_of(identity.namespace, session_id))
    if known is None:  # its first answer may be on its way
        holder = await services.live_state.claim_of(identity.namespace, owner_key(session_id))
        known = holder == user and await services.live_state.has_session(identity.namespace, session_id)
    if not known or await read(services, lambda view: view.turns.has_others(identity.namespace, session_id, user)):
        raise NotFound(f"no session {session_id}", param="session_id", code="unknown_session")


async def check_target(outcome: Outcome, subject: Subject, named: NamedTurn) -> None:
    """Raise InvalidRequest naming `target_range` or `tool_call_id` when the turn has no such part.

    Raises Unfinished where the turn may be about to have it."""
    if outcome.target_range is None and outcome.target_call is None:
        return
    if subject != "inference":
        param = "target_range" if outcome.target_range is not None else "tool_call_id"
        raise InvalidRequest(f"{param}: only for an inference", param=param)
    _check_parts(await named.load_whole(), outcome)


def _check_parts(turn: Completion, outcome: Outcome) -> None:
    target = outcome.target_range
    if target is not None and not 0 <= target.start < target.end <= turn.num_output_tokens:
        raise InvalidRequest(
            f"target_range: the inference has output tokens 0 to {turn.num_output_tokens}", param="target_range"
        )
    call = outcome.target_call
    if call is not None and call.tool_call_id not in {made.id for made in turn.tool_calls}:
        raise InvalidRequest(f"tool_call_id: the inference made no call {call.tool_call_id}", param="tool_call_id")


async def check_superseded(services: ApiServices, identity: Identity, outcome: Outcome) -> None:
    """Check that the outcome which this one supersedes may be superseded.

    Raises NotFound (also for others' feedback), InvalidRequest when it is about something else, Conflict when it was
    superseded before."""
    if outcome.supersedes is None:
        return
    namespace, before_id = outcome.namespace, outcome.supersedes
    found = await look_up(services, lambda view: view.outcomes.get(namespace, before_id))
    if found is None or not identity.may_change(found[0]):
        raise NotFound(f"no feedback {before_id}", param="supersedes", code="unknown_feedback")
    before = found[0]
    if (before.inference_id, before.session_id, before.name) != (
        outcome.inference_id,
        outcome.session_id,
        outcome.name,
    ):
        raise InvalidRequest(
            f"supersedes: {before_id} is about another inference, session or metric", param="supersedes"
        )
    successor = await read(services, lambda view: last_word(view, before))
    if before.withdrawn or (successor is not None and successor.outcome_id != outcome.outcome_id):
        raise Conflict(f"supersedes: {before_id} no longer counts", param="supersedes", code="superseded")
