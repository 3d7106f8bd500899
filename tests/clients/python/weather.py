"""The task of the SDKs: a question, a call of a function, its result, an answer, thanks, an answer."""

import os

URL = os.environ["ONWARD_URL"]
MODEL = os.environ["ONWARD_MODEL"]
QUESTION = "What is the weather in Paris? The codeword is amber."
THANKS = "Thank you. The codeword is beryl."
ANSWER = "It is mild in Paris today: slate."
WELCOME = "You are welcome."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
DESCRIPTION = "Return the weather of a city."


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Paris", city
    return "21 degrees; the codeword is garnet"


def check(said: str | None, expected: str) -> None:
    assert (said or "").strip() == expected, f"{said!r} is not {expected!r}"
