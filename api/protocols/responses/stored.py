"""The route `GET /v1/responses/{response_id}`: an answer that was given before."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi import Response as HttpResponse

from api.access.context import ApiContext
from api.access.low_priority import tier_of
from api.access.plain import identity_of, json_response, only_parameters
from api.access.quotas.limits import admit
from api.protocols.responses.answers import Response, ResponsesUsage, output_of, status_of
from api.protocols.responses.earlier import turn_named
from api.protocols.responses.request import TEXT_INPUT
from api.turns.answer_ids import RESPONSE
from core.errors import InvalidRequest, NotFound
from core.events import Completion

_FAILED = {"code": "server_error", "message": "the engine gave up the answer before its end"}


def stored_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.get("/v1/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> HttpResponse:
        """Return an answer that was given before, and was to be stored.

        Its thinking is not kept as words, and what its request asked for only as far as the turn's record tells."""
        only_parameters(request)
        identity = identity_of(request)
        await admit(context.services.live_state, identity)
        try:
            turn = await turn_named(context, identity, response_id, "response_id")
        except InvalidRequest as error:
            raise NotFound(error.message, param=error.param, code=error.code) from None
        return json_response(_response(turn))

    return router


def _response(turn: Completion) -> Response:
    status, sampling = status_of(turn), turn.sampling
    created_s = turn.received_at.timestamp()
    return Response(
        id=RESPONSE + turn.inference_id,
        created_at=int(created_s),
        completed_at=int(created_s + turn.latency_ms / 1000) if status == "completed" else None,
        status=status,
        incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
        error=_FAILED if status == "failed" else None,
        model=turn.policy,
        output=output_of(turn, _takes_text(turn)),
        usage=_usage(turn),
        instructions=turn.messages[0]["content"] if turn.has_instructions else None,
        previous_response_id=None,
        tools=[{"type": "function", **tool["function"]} for tool in turn.tools],
        tool_choice="auto",
        parallel_tool_calls=True,
        max_output_tokens=sampling.max_tokens,
        max_tool_calls=None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        top_logprobs=0,
        text={"format": {"type": "text"}},
        reasoning=None,
        truncation="disabled",
        store=True,
        service_tier=tier_of(turn.priority),
        metadata=turn.tags,
        user=None,
    )


def _takes_text(turn: Completion) -> set[str]:
    """Return the names of the tools whose argument was a text."""
    functions: list[dict[str, Any]] = [tool["function"] for tool in turn.tools]
    return {function["name"] for function in functions if function.get("parameters") == TEXT_INPUT}


def _usage(turn: Completion) -> ResponsesUsage:
    thought = sum(segment.end - segment.start for segment in turn.segments if segment.kind == "thinking")
    return ResponsesUsage(
        input_tokens=turn.num_prompt_tokens,
        input_tokens_details={"cached_tokens": 0},
        output_tokens=turn.num_output_tokens,
        output_tokens_details={"reasoning_tokens": thought},
        total_tokens=turn.num_prompt_tokens + turn.num_output_tokens,
    )
