// openai: the Responses API, streamed, with a function; the whole history is sent each time.
import OpenAI from "openai";
import { DESCRIPTION, MODEL, PARAMETERS, TURNS, URL, check, getWeather } from "./weather.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "unused" });
const tools = [
  { type: "function", name: "get_weather", description: DESCRIPTION, parameters: PARAMETERS, strict: true },
];

const input = [];
for (const [question, answer] of TURNS) {
  input.push({ role: "user", content: question });
  for (;;) {
    const response = await client.responses.stream({ model: MODEL, input, tools }).finalResponse();
    input.push(...response.output);
    const calls = response.output.filter((item) => item.type === "function_call");
    for (const call of calls) {
      const output = getWeather(JSON.parse(call.arguments));
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
    if (calls.length === 0) {
      check(response.output_text, answer);
      break;
    }
  }
}
