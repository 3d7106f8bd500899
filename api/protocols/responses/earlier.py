"""Earlier answers that a request names: the one that it continues, and items that it sends as their ids alone."""

from collections.abc import Iterable, Sequence

import msgspec

from api.access.context import Context
from api.access.identity import Identity
from api.requests.messages import AssistantMessage, ChatMessage, FunctionCall, ToolCallPart
from api.requests.responses import ItemReference
from api.turns.answer_ids import inference_in
from api.turns.lookup import look_up
from core.errors import InvalidRequest
from core.events import Completion, ToolCall
from core.ids import InferenceId, is_uuid

INSTRUCTIONS = "instructions"
"""The key of a stored message that was a request's instructions, which do not outlive it."""
REASONING, CALL = "rs_", "fc_"
_ID_CHARACTERS = 36


async def turn_named(context: Context, identity: Identity, named: str, param: str) -> Completion:
    """Return the turn of an answer, or of one of its items, by its id.

    Raises InvalidRequest where there is none that the caller may see, or may get again; StoreUnavailable."""
    inference_id = InferenceId(_inference_in(named).lower())
    turn = None
    if is_uuid(inference_id):
        turn = await look_up(context.services, lambda view: view.turns.get(identity.namespace, inference_id))
    if turn is None or not identity.sees(turn) or not turn.retrievable or turn.unstored is not None:
        message = f"{param}: there is no stored answer {named!r}; send what was said in it as items of input"
        raise InvalidRequest(message, param=param, code="previous_response_not_found")
    return turn


def _inference_in(named: str) -> str:
    for prefix in (REASONING, CALL):
        if named.startswith(prefix):
            return named[len(prefix) :][:_ID_CHARACTERS]
    return inference_in(named)


def said_before(turn: Completion) -> list[ChatMessage]:
    """Return the conversation up to and with the turn's answer, without its instructions."""
    kept = [message for message in turn.messages if not message.get(INSTRUCTIONS)]
    return [*msgspec.convert(kept, list[ChatMessage]), answer_of(turn)]


def answer_of(turn: Completion) -> AssistantMessage:
    return AssistantMessage(
        content=turn.text, tool_calls=[_call_part(call) for call in turn.tool_calls] or msgspec.UNSET
    )


async def said_by_id(
    context: Context, identity: Identity, items: Sequence[tuple[msgspec.Struct, str]]
) -> dict[str, AssistantMessage]:
    """Return what each item that is named by its id alone says. Raises InvalidRequest naming the item."""
    said = {}
    for item, place in items:
        if isinstance(item, ItemReference):
            turn = await turn_named(context, identity, item.id, f"{place}.id")
            said[item.id] = _said(turn, item.id, f"{place}.id")
    return said


def _said(turn: Completion, item_id: str, param: str) -> AssistantMessage:
    """Return what one item of a turn says; thinking is not kept as words, and so says nothing."""
    if item_id.startswith(REASONING):
        return AssistantMessage()
    if not item_id.startswith(CALL):
        return AssistantMessage(content=turn.text)
    call = next(iter(_calls_named(turn.tool_calls, item_id)), None)
    if call is None:
        raise InvalidRequest(f"{param}: the answer made no such call", param=param, code="unknown_item")
    return AssistantMessage(tool_calls=[_call_part(call)])


def _calls_named(calls: Iterable[ToolCall], item_id: str) -> Iterable[ToolCall]:
    place = item_id[len(CALL) + _ID_CHARACTERS :].lstrip("_")
    return (call for number, call in enumerate(calls) if str(number) == place)


def _call_part(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(call.id, FunctionCall(call.name, call.arguments))
