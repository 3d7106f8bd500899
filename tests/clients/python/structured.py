"""openai: answers that a JSON schema shapes, and a function that must be called."""

from typing import Any

import weather
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{weather.URL}/v1", api_key="unused")


class Report(BaseModel):
    city: str
    degrees: int


asked: Any = {"role": "user", "content": "Report the weather of Paris. The codeword is jasper."}
said = client.chat.completions.parse(model=weather.MODEL, messages=[asked], response_format=Report).choices[0].message
assert said.parsed == Report(city="Paris", degrees=21), said
tool: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": weather.DESCRIPTION, "parameters": weather.PARAMETERS},
}
messages: Any = [{"role": "user", "content": weather.QUESTION}]
forced = (
    client.chat.completions.create(model=weather.MODEL, messages=messages, tools=[tool], tool_choice="required")
    .choices[0]
    .message
)
assert forced.tool_calls, forced
assert forced.tool_calls[0].function.arguments == '{"city": "Paris"}', forced  # type: ignore[union-attr]
