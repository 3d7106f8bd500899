"""litellm: chat completions, streamed, with a function; its own messages are sent back as it made them."""

import json
from typing import Any

import litellm
import weather

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": weather.DESCRIPTION, "parameters": weather.PARAMETERS},
}


def ask(messages: list[Any]) -> Any:
    chunks = litellm.completion(
        model=f"openai/{weather.MODEL}",
        api_base=f"{weather.URL}/v1",
        api_key="unused",
        messages=messages,
        tools=[TOOL],
        stream=True,
    )
    whole = litellm.stream_chunk_builder(list(chunks), messages=messages)
    assert whole is not None
    return whole.choices[0].message  # type: ignore[union-attr]


messages: list[Any] = [{"role": "user", "content": weather.QUESTION}]
said = ask(messages)
(call,) = said.tool_calls
result = weather.get_weather(**json.loads(call.function.arguments))
messages += [said, {"role": "tool", "tool_call_id": call.id, "content": result}]
said = ask(messages)
weather.check(said.content, weather.ANSWER)
messages += [said, {"role": "user", "content": weather.THANKS}]
weather.check(ask(messages).content, weather.WELCOME)
