"""The route `GET /v1/turns/{inference_id}`: the story of one turn, from its prompt to its reward."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import identity_of, json_response, only_parameters
from api.access.trail import Note, note_of
from api.operator.rewards import MOST_BYTES, MOST_OUTCOMES, MOST_REWARDS, as_seen, plain
from api.turns.answer_ids import inference_of
from api.turns.lookup import look_up
from api.turns.session_ids import is_id
from core.codec import to_builtins
from core.errors import NotFound
from core.events import Completion, Reward
from core.ids import InferenceId
from core.ports import Renderer
from core.records.call_times import with_call_times
from core.store.work import View

_FIELDS = (
    "inference_id", "session_id", "parent_id", "turn_index", "namespace", "workload", "purpose", "client", "protocol",
    "ignored", "environment", "environment_image", "harness_version",
    "received_at", "messages", "tools", "sampling", "text", "tool_calls", "finish_reason", "policy", "policy_versions",
    "replica", "experiment_id", "arm", "arm_assigned", "trainable", "untrainable_reasons", "learn", "delivered_tokens",
    "ttft_ms", "latency_ms", "tags",
)  # fmt: skip

_MOST_FOLLOWING = 16  # turns in which the times of its calls are looked for


def turn_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["turns"])
    services = context.services

    @router.get("/v1/turns/{inference_id}")
    async def get_turn(request: Request, inference_id: str) -> Response:
        """Return the prompt, each token with its log-probability and version, the outcomes and the reward's revisions.

        Only what has reached the store is there."""
        identity = identity_of(request)
        only_parameters(request)
        if not is_id(inference_id):
            raise _unknown(inference_id)
        query, note = inference_of(inference_id), note_of(request)
        found = await look_up(services, lambda view: _story(view, identity, query, services.renderer, note))
        if found is None:
            raise _unknown(inference_id)
        return json_response(found)

    return router


def _unknown(inference_id: str) -> NotFound:
    return NotFound(f"no turn {inference_id}", param="inference_id", code="unknown_inference")


def _story(
    view: View, identity: Identity, inference_id: InferenceId, renderer: Renderer, note: Note
) -> dict[str, Any] | None:
    turn = view.turns.get(identity.namespace, inference_id)
    if turn is None or not identity.sees(turn):
        return None
    note.saw(turn.user_id)
    bounds = MOST_OUTCOMES, MOST_BYTES
    outcomes = view.outcomes.newest_of_session(identity.namespace, turn.session_id, *bounds)
    of_turn = view.outcomes.newest_of_turns(identity.namespace, [inference_id], *bounds)
    outcomes += [outcome for outcome in of_turn if outcome.session_id is None]
    about = [outcome for outcome in outcomes if outcome.inference_id in (inference_id, None) and identity.sees(outcome)]
    rewards = as_seen(view.rewards.newest_of_turns([inference_id], MOST_REWARDS, MOST_BYTES), identity, about)
    fields = to_builtins(_with_times(view, identity, turn))
    return {
        **{name: fields[name] for name in _FIELDS},
        "stored": turn.unstored is None,
        "prompt_tokens": turn.num_prompt_tokens,
        "completion_tokens": turn.num_output_tokens,
        "tokens": list(_tokens(turn, renderer)),
        "outcomes": [plain(outcome) for outcome in sorted(about, key=lambda outcome: outcome.received_at)],
        "rewards": [_with_texts(reward, turn, renderer) for reward in rewards],
    }


def _with_times(view: View, identity: Identity, turn: Completion) -> Completion:
    """Return the turn with the times of its calls, which stand with their results in the turns that continue it."""
    if not turn.tool_calls:
        return turn
    following = [each for each in view.turns.following(turn, _MOST_FOLLOWING) if identity.sees(each)]
    return with_call_times([turn, *following])[0]


def _tokens(turn: Completion, renderer: Renderer) -> Iterator[dict[str, Any]]:
    """Yield the output tokens; `text` is null where the turn was made by another tokenizer."""
    known = turn.tokenizer_digest == renderer.tokenizer_digest
    versions = [span.version for span in turn.policy_versions for _ in range(span.start, span.end)]
    for place, token_id in enumerate(turn.token_ids):
        yield {
            "id": token_id,
            "text": renderer.token_text(token_id) if known else None,
            "logprob": turn.logprobs[place] if place < len(turn.logprobs) else None,
            "version": versions[place] if place < len(versions) else None,
        }


def _with_texts(reward: Reward, turn: Completion, renderer: Renderer) -> dict[str, Any]:
    """Return a reward with the texts that a user put in; null where the turn was made by another tokenizer."""
    fields, known = plain(reward), turn.tokenizer_digest == renderer.tokenizer_digest
    for edit, shown in zip(reward.edits, fields["edits"], strict=True):
        said = b"".join(map(renderer.token_bytes, edit.token_ids)).decode("utf-8", "replace") if known else None
        shown["text"] = said
    return fields
