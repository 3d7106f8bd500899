"""openai-agents: an agent that asks another one, which is its tool; chat completions."""

import asyncio

import weather
from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=f"{weather.URL}/v1", api_key="unused"), use_for_tracing=False)
set_default_openai_api("chat_completions")


@function_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return weather.get_weather(city)


async def main() -> None:
    reporter = Agent(name="Reporter", instructions="Report the weather.", model=weather.MODEL, tools=[get_weather])
    tool = reporter.as_tool(tool_name="report", tool_description="Asks the reporter.")
    editor = Agent(name="Editor", instructions="Ask the reporter.", model=weather.MODEL, tools=[tool])
    run = await Runner.run(editor, "Have the weather of Paris reported. The codeword is agate.")
    weather.check(run.final_output, "The report is in.")


asyncio.run(main())
