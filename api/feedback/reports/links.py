"""Names that clients give to our answers and conversations, as their traces tell."""

import hashlib
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.feedback.side_by_side import in_slices
from api.turns.answer_ids import inference_in
from api.turns.lookup import look_up
from core.events import Completion
from core.ids import InferenceId, is_uuid
from core.store.work import View

_SEVERAL: Final = "several"
_FIRST, _TWICE = "", "twice"
_CONVERSATION: Final = "conversation:"
LONGEST_NAME: Final = 512
"""The most characters of what clients call something; nothing is known by a longer name."""


class Ambiguous(Exception):
    """Several answers were given the name."""


def own_id(name: str) -> InferenceId | None:
    """Return the id of ours that a client's name of an answer has the form of."""
    own = inference_in(name).lower()
    return InferenceId(own) if is_uuid(own) else None


def linked_conversation(conversation: str) -> str:
    """Return the name under which a conversation's session is linked."""
    return _CONVERSATION + conversation


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a client that belong to the answer which one of the ids `answers` names.

    `within`: its name of the conversation, or ""."""

    answers: tuple[str, ...]
    names: tuple[str, ...] = ()
    within: str = ""


async def link(context: ApiContext, identity: Identity, links: Iterable[Link]) -> None:
    """Remember the names of those answers that are the caller's own. Raises StoreUnavailable."""
    wanted = [(list(filter(None, map(own_id, each.answers))), each) async for each in in_slices(links)]
    own = await _own_turns(context, identity, {name for names, _ in wanted for name in names})
    meant: dict[tuple[str, str], None] = {}  # each once: the spans of a conversation all name it
    async for names, each in in_slices(wanted):
        turn = next((own[name] for name in names if name in own), None)
        if turn is not None:
            meant |= dict.fromkeys((name, turn.inference_id) for name in each.names)
            if each.within:
                meant[_CONVERSATION + each.within, turn.session_id] = None
    async for name, target in in_slices(meant):
        await _remember(context, identity, name, target)


async def _own_turns(
    context: ApiContext, identity: Identity, names: Collection[InferenceId]
) -> dict[InferenceId, Completion]:
    """Return the caller's own of these turns, waiting for the store where it lacks some."""
    found: dict[InferenceId, Completion] = {}

    def query(view: View) -> bool | None:
        found.update(view.turns.get_many(set(names) - found.keys()))
        return len(found) == len(names) or None

    if names:
        await look_up(context.services, query)
    return {name: turn for name, turn in found.items() if turn.namespace == identity.namespace and identity.made(turn)}


async def _remember(context: ApiContext, identity: Identity, name: str, target: str) -> None:
    live_state, namespace = context.services.live_state, identity.namespace
    if await live_state.claim(namespace, _key(_FIRST, identity, name), target) not in (target, None):
        await live_state.claim(namespace, _key(_TWICE, identity, name), _SEVERAL)


async def linked(context: ApiContext, identity: Identity, name: str) -> str | None:
    """Return what the name was linked to; None for nothing. Raises Ambiguous for a name of several."""
    live_state, namespace = context.services.live_state, identity.namespace
    target = await live_state.claim_of(namespace, _key(_FIRST, identity, name))
    twice = _key(_TWICE, identity, name)
    if target is not None and await live_state.claim_of(namespace, twice) is not None:
        raise Ambiguous
    return target


def _key(which: str, identity: Identity, name: str) -> str:
    """Return the key of a link, which holds for whoever told it alone: others may use the same names.

    That a name has several answers is a claim of the same kind, and used later: it is forgotten later, too."""
    named = hashlib.blake2b("\0".join((identity.user or identity.by, name)).encode(), digest_size=16)
    return f"link:{which}\0{named.hexdigest()}"
