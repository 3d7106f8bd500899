"""llama-index: a function agent over chat completions, streamed, with a tool and its own memory."""

import asyncio

import weather
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike

MODEL = OpenAILike(
    model=weather.MODEL,
    api_base=f"{weather.URL}/v1",
    api_key="unused",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32_000,
    temperature=1.0,
)


async def main() -> None:
    agent = FunctionAgent(tools=[weather.get_weather], llm=MODEL)
    memory = ChatMemoryBuffer.from_defaults(llm=MODEL)
    for question, answer in ((weather.QUESTION, weather.ANSWER), (weather.THANKS, weather.WELCOME)):
        run = agent.run(question, memory=memory)
        async for _ in run.stream_events():
            pass
        weather.check(str(await run), answer)


asyncio.run(main())
