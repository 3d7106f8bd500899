"""The places of a chat's request that hold its users' words."""

from api.redaction.places import RedactedTexts
from api.redaction.redaction import Redaction
from api.requests.bodies import ChatBody
from api.requests.messages import AssistantMessage, ChatMessage


def redact_chat(body: ChatBody, redaction: Redaction) -> None:
    """Redact a checked request in place: tools, messages in their order, then what its answer is held to.

    That comes last, since it may name values that only the messages show to be secret.

    Raises InvalidRequest for a tool whose name is a secret."""
    places = RedactedTexts()
    for index, tool in enumerate(body.tools or ()):
        places.name(tool.function.name, f"tools[{index}].function.name")
        places.add(tool.function, "description")
        places.add(tool.function, "parameters")
    for index, message in enumerate(body.messages):
        _add_message(places, message, f"messages[{index}]")
    places.add(body, "response_format")
    places.add(body, "stop")
    places.redact(redaction)


def _add_message(places: RedactedTexts, message: ChatMessage, place: str) -> None:
    places.add(message, "name")
    if isinstance(message, AssistantMessage):
        places.add(message, "reasoning_content")
        places.add(message, "reasoning")
    if isinstance(message.content, list):
        for part in message.content:
            if hasattr(part, "text"):
                places.add(part, "text")
    else:
        places.add(message, "content")
    if isinstance(message, AssistantMessage):
        for index, call in enumerate(message.tool_calls or ()):
            places.name(call.function.name, f"{place}.tool_calls[{index}].function.name")
            places.add_json(call.function, "arguments")
