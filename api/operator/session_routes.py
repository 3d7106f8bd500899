"""The routes of `/v1/sessions`: the tree of a session's turns with what became of them, and its end.

An id may hold slashes, and a quoted one (`%2F`) arrives as a slash. A path that ends in `/end` is the route of that
name wherever the method has one: `POST .../a/end` ends the session `a`, as `POST .../a/end/end` ends the session
`a/end`."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import identity_of, json_response, only_parameters
from api.access.trail import Note, note_of
from api.feedback.targets import check_session_is_own, has_session
from api.operator.rewards import MOST_BYTES, MOST_OUTCOMES, MOST_REWARDS, as_seen, plain
from api.turns.lookup import look_up
from api.turns.session_ids import is_id
from core.codec import to_builtins
from core.errors import NotFound
from core.events import Completion, Outcome, Reward, SessionEnded
from core.ids import InferenceId, SessionId
from core.records.call_times import with_call_times
from core.store.work import View

_MOST_TURNS = 1000
_MOST_BYTES = 32 << 20  # of their records
_TURN_FIELDS = (
    "inference_id", "parent_id", "group_id", "turn_index", "purpose", "workload", "client", "protocol",
    "received_at", "text", "tool_calls", "policy_versions", "trainable", "untrainable_reasons", "finish_reason",
    "learn", "session_done", "environment", "environment_image", "harness_version",
    "delivered_tokens", "ttft_ms", "latency_ms", "tags",
)  # fmt: skip
_About = TypeVar("_About", Outcome, Reward)


def session_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["sessions"])
    services = context.services

    @router.post("/v1/sessions/{session_id:path}/end")
    async def end_session(request: Request, session_id: str) -> Response:
        """End the session: no more turns will come, so waits for outcomes of the whole session can end."""
        identity = identity_of(request)
        only_parameters(request)
        namespace, known_id = identity.namespace, SessionId(session_id)
        if not is_id(session_id) or not await has_session(services, namespace, known_id):
            raise _unknown(session_id)
        await check_session_is_own(services, identity, known_id)
        await context.quotas.admit_record(identity, identity.user)
        ended = SessionEnded(session_id=known_id, namespace=namespace, received_at=services.clock.now())
        await context.background.insist(context.log.record(identity, ended))
        return json_response({"session_id": session_id, "status": "ended"})

    @router.get("/v1/sessions/{session_id:path}")
    async def get_session(request: Request, session_id: str) -> Response:
        """Return the session's turns (each names its parent), their outcomes and rewards.

        Only what has reached the store is there. Of a long session these are the newest turns, and `complete` is
        false: at most 1,000, of 32 MiB."""
        identity = identity_of(request)
        only_parameters(request)
        if not is_id(session_id):
            raise _unknown(session_id)
        note = note_of(request)
        found = await look_up(services, lambda view: _session(view, identity, SessionId(session_id), note))
        if found is None:
            raise _unknown(session_id)
        return json_response(found)

    return router


def _unknown(session_id: str) -> NotFound:
    return NotFound(f"no session {session_id}", param="session_id", code="unknown_session")


def _session(view: View, identity: Identity, session_id: SessionId, note: Note) -> dict[str, Any] | None:
    newest, are_all = view.turns.newest_of_session(identity.namespace, session_id, _MOST_TURNS, _MOST_BYTES)
    turns = [turn for turn in newest if identity.sees(turn)]
    if not turns:
        return None
    note.saw(*(turn.user_id for turn in turns))
    ids = [turn.inference_id for turn in turns]
    bounds = MOST_OUTCOMES, MOST_BYTES
    of_turns = view.outcomes.newest_of_turns(identity.namespace, ids, *bounds)
    outcomes = [outcome for outcome in of_turns if identity.sees(outcome)]
    of_session = view.outcomes.newest_of_session(identity.namespace, session_id, *bounds)
    of_all = [outcome for outcome in of_session if outcome.inference_id is None and identity.sees(outcome)]
    found = view.rewards.newest_of_turns(ids, MOST_REWARDS, MOST_BYTES)
    rewards = as_seen(found, identity, [*outcomes, *of_all])
    said, decided = _by_turn(outcomes), _by_turn(rewards)
    return {
        "session_id": session_id,
        "complete": are_all,
        "turns": [
            _described(turn, said[turn.inference_id], decided[turn.inference_id]) for turn in with_call_times(turns)
        ],
        "outcomes": [plain(outcome) for outcome in of_all],
    }


def _by_turn(events: Sequence[_About]) -> defaultdict[InferenceId | None, list[_About]]:
    found: defaultdict[InferenceId | None, list[_About]] = defaultdict(list)
    for event in events:
        found[event.inference_id].append(event)
    return found


def _described(turn: Completion, outcomes: list[Outcome], rewards: list[Reward]) -> dict[str, Any]:
    fields = to_builtins(msgspec.structs.replace(turn, messages=(), tools=()))
    return {
        **{name: fields[name] for name in _TURN_FIELDS},
        "stored": turn.unstored is None,
        "prompt_tokens": turn.num_prompt_tokens,
        "completion_tokens": turn.num_output_tokens,
        "outcomes": [plain(outcome) for outcome in outcomes],
        "rewards": [plain(reward) for reward in rewards],
    }
