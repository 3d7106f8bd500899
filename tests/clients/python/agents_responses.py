"""openai-agents, as it is set up by default: the Responses API, streamed, with its own session in SQLite."""

import asyncio
import os
import sys

import weather
from agents import (
    Agent,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=f"{weather.URL}/v1", api_key="unused"), use_for_tracing=False)
if sys.argv[1:] == ["chat"]:
    set_default_openai_api("chat_completions")


@function_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return weather.get_weather(city)


async def main() -> None:
    agent = Agent(name="Weather", instructions="Answer.", model=weather.MODEL, tools=[get_weather])
    session = SQLiteSession(f"weather-{os.getpid()}")
    for question, answer in ((weather.QUESTION, weather.ANSWER), (weather.THANKS, weather.WELCOME)):
        run = Runner.run_streamed(agent, question, session=session)
        async for _ in run.stream_events():
            pass
        weather.check(run.final_output, answer)


asyncio.run(main())
