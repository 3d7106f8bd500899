"""langchain: an agent over `openai` (chat completions) or `anthropic`, streamed, with a tool and its own memory."""

import sys
from typing import Any

import weather
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI


def make_model(kind: str) -> Any:
    if kind == "anthropic":
        return ChatAnthropic(model_name=weather.MODEL, base_url=weather.URL, api_key="unused", streaming=True)
    return ChatOpenAI(model=weather.MODEL, base_url=f"{weather.URL}/v1", api_key="unused", streaming=True)


agent = create_agent(make_model(sys.argv[1]), tools=[weather.get_weather])
messages: list[Any] = []
for question, answer in ((weather.QUESTION, weather.ANSWER), (weather.THANKS, weather.WELCOME)):
    messages.append({"role": "user", "content": question})
    for state in agent.stream({"messages": messages}, stream_mode="values"):
        messages = state["messages"]
    weather.check(messages[-1].text, answer)
