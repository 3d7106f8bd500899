"""openai: what chat windows do: another answer to the same request, and a request that is edited."""

from typing import Any

import weather
from openai import OpenAI

client = OpenAI(base_url=f"{weather.URL}/v1", api_key="unused")


def ask(*said: str) -> str:
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[place % 2], "content": each} for place, each in enumerate(said)]
    return client.chat.completions.create(model=weather.MODEL, messages=messages).choices[0].message.content or ""


QUESTION = "What is it that greet does? The codeword is sienna."
first = ask(QUESTION)
weather.check(ask(QUESTION, first, weather.THANKS), weather.WELCOME)
weather.check(ask(QUESTION, first, weather.THANKS), weather.WELCOME)
weather.check(ask(QUESTION, first, "Many thanks! The codeword is beryl."), weather.WELCOME)
