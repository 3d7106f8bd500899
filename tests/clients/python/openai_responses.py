"""openai: the Responses API, streamed, with a function, each request behind `previous_response_id`."""

import json
from typing import Any

import weather
from openai import OpenAI

client = OpenAI(base_url=f"{weather.URL}/v1", api_key="unused")
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": weather.DESCRIPTION,
    "parameters": weather.PARAMETERS,
    "strict": True,
}


def ask(given: Any, after: str | None = None) -> Any:
    options = {} if after is None else {"previous_response_id": after}
    with client.responses.stream(model=weather.MODEL, input=given, tools=[TOOL], **options) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


first = ask(weather.QUESTION)
(call,) = [item for item in first.output if item.type == "function_call"]
result = weather.get_weather(**json.loads(call.arguments))
second = ask([{"type": "function_call_output", "call_id": call.call_id, "output": result}], first.id)
weather.check(second.output_text, weather.ANSWER)
weather.check(ask(weather.THANKS, second.id).output_text, weather.WELCOME)
