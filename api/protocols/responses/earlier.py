"""Earlier answers that a request names: the one that it continues, and items that it sends as their ids alone."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.requests.messages import AssistantMessage, ChatMessage, FunctionCall, ToolCallPart
from api.requests.responses import ItemReference
from api.turns.answer_ids import inference_in
from api.turns.lookup import look_up
from core.errors import InvalidRequest
from core.events import Completion, ToolCall
from core.ids import InferenceId, is_uuid

REASONING, CALL = "rs_", "fc_"
_ID_CHARACTERS = 36
_MOST_REFERENCES = 256


async def turn_named(context: ApiContext, identity: Identity, named: str, param: str) -> Completion:
    """Return the turn of an answer, or of one of its items, by its id.

    Raises InvalidRequest where there is none that the caller may see, or may get again; StoreUnavailable."""
    inference_id = InferenceId(_inference_in(named).lower())
    turn = None
    if is_uuid(inference_id):
        turn = await look_up(context.services, lambda view: view.turns.get(identity.namespace, inference_id))
    if turn is None or not identity.sees(turn) or not _may_be_got(turn):
        message = f"{param}: there is no stored answer {named!r}; send what was said in it as items of input"
        raise InvalidRequest(message, param=param, code="previous_response_not_found")
    return turn


def _may_be_got(turn: Completion) -> bool:
    """Return whether it is a turn of a conversation, whose words are stored and may be got by its id."""
    is_chat = not any(message["role"] == "prompt" for message in turn.messages)
    return turn.retrievable and turn.unstored is None and is_chat


def _inference_in(named: str) -> str:
    for prefix in (REASONING, CALL):
        if named.startswith(prefix):
            return named[len(prefix) :][:_ID_CHARACTERS]
    return inference_in(named)


def said_before(turn: Completion) -> list[ChatMessage]:
    """Return the conversation up to and with the turn's answer, without its instructions."""
    kept = turn.messages[1:] if turn.has_instructions else turn.messages
    return [*msgspec.convert(kept, list[ChatMessage]), answer_of(turn)]


def answer_of(turn: Completion) -> AssistantMessage:
    return AssistantMessage(
        content=turn.text, tool_calls=[_call_part(call) for call in turn.tool_calls] or msgspec.UNSET
    )


def references_in(items: Sequence[tuple[msgspec.Struct, str]]) -> dict[str, str]:
    """Return the items that are named by their ids alone, and where each is. Raises InvalidRequest naming the item.

    Each is named once: repeated, a short request would say more than any may."""
    named: dict[str, str] = {}
    for item, place in items:
        if isinstance(item, ItemReference) and named.setdefault(item.id, f"{place}.id") != f"{place}.id":
            raise InvalidRequest(f"{place}.id: named before", param=f"{place}.id", code="duplicate_item")
    if len(named) > _MOST_REFERENCES:
        raise InvalidRequest(f"input: more than {_MOST_REFERENCES} items that are named by their ids", param="input")
    return named


async def said_by_id(context: ApiContext, identity: Identity, named: Mapping[str, str]) -> dict[str, AssistantMessage]:
    """Return what each item of `references_in` says. Raises InvalidRequest naming the item."""
    said: dict[str, AssistantMessage] = {}
    turns: dict[str, Completion] = {}
    for item_id, place in named.items():
        turn = turns.get(_inference_in(item_id)) or await turn_named(context, identity, item_id, place)
        turns[_inference_in(item_id)] = turn
        said[item_id] = _said(turn, item_id, place)
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
