// openai: chat completions, streamed, with a function.
import OpenAI from "openai";
import { DESCRIPTION, MODEL, PARAMETERS, TURNS, URL, check, getWeather } from "./weather.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "unused" });
const tools = [
  { type: "function", function: { name: "get_weather", description: DESCRIPTION, parameters: PARAMETERS } },
];

async function ask(messages) {
  const stream = client.chat.completions.stream({ model: MODEL, messages, tools });
  return (await stream.finalChatCompletion()).choices[0].message;
}

const messages = [];
for (const [question, answer] of TURNS) {
  messages.push({ role: "user", content: question });
  let said = await ask(messages);
  messages.push(said);
  for (const call of said.tool_calls ?? []) {
    const content = getWeather(JSON.parse(call.function.arguments));
    messages.push({ role: "tool", tool_call_id: call.id, content });
    said = await ask(messages);
    messages.push(said);
  }
  check(said.content, answer);
}
