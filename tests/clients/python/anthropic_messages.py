"""anthropic: Messages, streamed, with a tool."""

from typing import Any

import weather
from anthropic import Anthropic

client = Anthropic(base_url=weather.URL, api_key="unused")
TOOL: Any = {"name": "get_weather", "description": weather.DESCRIPTION, "input_schema": weather.PARAMETERS}


def ask(messages: list[Any]) -> Any:
    with client.messages.stream(model=weather.MODEL, max_tokens=256, messages=messages, tools=[TOOL]) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


messages: list[Any] = [{"role": "user", "content": weather.QUESTION}]
assert client.messages.count_tokens(model=weather.MODEL, messages=messages).input_tokens > 0
said = ask(messages)
(call,) = [block for block in said.content if block.type == "tool_use"]
result = {"type": "tool_result", "tool_use_id": call.id, "content": weather.get_weather(**call.input)}
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
said = ask(messages)
weather.check(said.content[0].text, weather.ANSWER)
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": weather.THANKS}]
weather.check(ask(messages).content[0].text, weather.WELCOME)
