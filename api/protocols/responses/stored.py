"""The route `GET /v1/responses/{response_id}`: an answer that was given before."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.plain import identity_of, json_response, only_parameters
from api.protocols.responses.earlier import INSTRUCTIONS, turn_named
from api.turns.answer_ids import RESPONSE
from core.errors import InvalidRequest, NotFound
from core.events import Completion


def stored_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.get("/v1/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> Response:
        """Return an answer that was given before, and was to be stored; thinking is not kept as words."""
        only_parameters(request, "stream")
        try:
            turn = await turn_named(context, identity_of(request), response_id, "response_id")
        except InvalidRequest as error:
            raise NotFound(error.message, param=error.param, code=error.code) from None
        return json_response(_described(turn))

    return router


def _described(turn: Completion) -> dict[str, Any]:
    first = turn.messages[0] if turn.messages else {}
    is_cut = turn.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    return {
        "id": RESPONSE + turn.inference_id,
        "object": "response",
        "created_at": int(turn.received_at.timestamp()),
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "model": turn.policy,
        "output": _output(turn, status),
        "instructions": first["content"] if first.get(INSTRUCTIONS) else None,
        "tools": [{"type": "function", **tool["function"]} for tool in turn.tools],
        "temperature": turn.sampling.temperature,
        "top_p": turn.sampling.top_p,
        "max_output_tokens": turn.sampling.max_tokens,
        "store": True,
        "metadata": turn.tags,
        "usage": {
            "input_tokens": turn.num_prompt_tokens,
            "output_tokens": turn.num_output_tokens,
            "total_tokens": turn.num_prompt_tokens + turn.num_output_tokens,
        },
        "onward": {"inference_id": turn.inference_id, "session_id": turn.session_id, "parent_id": turn.parent_id},
    }


def _output(turn: Completion, status: str) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if turn.text or not turn.tool_calls:
        part = {"type": "output_text", "text": turn.text, "annotations": []}
        item = {"type": "message", "id": f"msg_{turn.inference_id}", "role": "assistant", "status": status}
        output.append({**item, "content": [part]})
    for number, call in enumerate(turn.tool_calls):
        item = {"type": "function_call", "id": f"fc_{turn.inference_id}_{number}", "call_id": call.id}
        output.append({**item, "name": call.name, "arguments": call.arguments, "status": "completed"})
    return output
