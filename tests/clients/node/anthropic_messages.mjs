// @anthropic-ai/sdk: Messages, streamed, with a tool.
import Anthropic from "@anthropic-ai/sdk";
import { DESCRIPTION, MODEL, PARAMETERS, TURNS, URL, check, getWeather } from "./weather.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "unused" });
const tools = [{ name: "get_weather", description: DESCRIPTION, input_schema: PARAMETERS }];

const messages = [];
for (const [question, answer] of TURNS) {
  messages.push({ role: "user", content: question });
  for (;;) {
    const said = await client.messages.stream({ model: MODEL, max_tokens: 256, messages, tools }).finalMessage();
    messages.push({ role: "assistant", content: said.content });
    const calls = said.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) {
      check(said.content[0].text, answer);
      break;
    }
    const results = calls.map((call) => ({
      type: "tool_result",
      tool_use_id: call.id,
      content: getWeather(call.input),
    }));
    messages.push({ role: "user", content: results });
  }
}
