"""pydantic-ai: `chat`, `responses` or `anthropic`, streamed, with a tool."""

import asyncio
import sys
from typing import Any

import weather
from anthropic import AsyncAnthropic
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def make_model(kind: str) -> Any:
    if kind == "anthropic":
        client = AsyncAnthropic(base_url=weather.URL, api_key="unused")
        return AnthropicModel(weather.MODEL, provider=AnthropicProvider(anthropic_client=client))
    provider = OpenAIProvider(base_url=f"{weather.URL}/v1", api_key="unused")
    return {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[kind](weather.MODEL, provider=provider)


async def main() -> None:
    agent = Agent(make_model(sys.argv[1]), tools=[weather.get_weather])
    history = None
    for question, answer in ((weather.QUESTION, weather.ANSWER), (weather.THANKS, weather.WELCOME)):
        async with agent.run_stream(question, message_history=history) as run:
            weather.check(await run.get_output(), answer)
            history = run.all_messages()


asyncio.run(main())
