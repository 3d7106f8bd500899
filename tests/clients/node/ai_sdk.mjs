// The AI SDK over `openai` (the Responses API), `chat`, `anthropic` or `compatible`: its own loop of tools, streamed.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { DESCRIPTION, MODEL, TURNS, URL, check, getWeather } from "./weather.mjs";

const settings = { baseURL: `${URL}/v1`, apiKey: "unused" };
const model = {
  openai: () => createOpenAI(settings)(MODEL),
  chat: () => createOpenAI(settings).chat(MODEL),
  anthropic: () => createAnthropic(settings)(MODEL),
  compatible: () => createOpenAICompatible({ name: "onward", ...settings })(MODEL),
}[process.argv[2]]();
const tools = {
  get_weather: tool({ description: DESCRIPTION, inputSchema: z.object({ city: z.string() }), execute: getWeather }),
};

const messages = [];
for (const [question, answer] of TURNS) {
  messages.push({ role: "user", content: question });
  const run = streamText({ model, messages, tools, stopWhen: stepCountIs(4) });
  check(await run.text, answer);
  messages.push(...(await run.responseMessages));
}
