// tabby-agent, which Tabby's plugins ask: a suggestion between a prefix and a suffix, seen, and taken.
import { TabbyAgent } from "tabby-agent";
import { URL, check } from "./weather.mjs";

const agent = new TabbyAgent();
await agent.initialize({
  config: { server: { endpoint: `${URL}/tabby`, token: "unused" }, anonymousUsageTracking: { disable: true } },
});
if (agent.getStatus() !== "ready") throw new Error(`the agent is ${agent.getStatus()}`);
const prefix = "# The codeword is topaz.\ndef add(a, b):\n";
const text = `${prefix}\n\nprint(add(1, 2))\n`;
const request = { filepath: "add.py", language: "python", text, position: prefix.length, manually: true };
const { id, choices } = await agent.provideCompletions(request);
check(choices[0]?.text, "return a + b");
const seen = { completion_id: id, choice_index: 0, view_id: `view-${id}` };
await agent.postEvent({ type: "view", ...seen });
await agent.postEvent({ type: "select", ...seen, elapsed: 900 });
await agent.finalize();
process.exit(0);
