"""openai: chat completions, streamed, with a function."""

import json
from typing import Any

import weather
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStream

client = OpenAI(base_url=f"{weather.URL}/v1", api_key="unused")
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": weather.DESCRIPTION, "parameters": weather.PARAMETERS},
}


def ask(messages: list[Any]) -> Any:
    with client.chat.completions.stream(model=weather.MODEL, messages=messages, tools=[TOOL]) as stream:
        assert isinstance(stream, ChatCompletionStream)
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0].message


messages: list[Any] = [{"role": "user", "content": weather.QUESTION}]
said = ask(messages)
(call,) = said.tool_calls
result = weather.get_weather(**json.loads(call.function.arguments))
messages += [
    said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
    {"role": "tool", "tool_call_id": call.id, "content": result},
]
said = ask(messages)
weather.check(said.content, weather.ANSWER)
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": weather.THANKS}]
weather.check(ask(messages).content, weather.WELCOME)
