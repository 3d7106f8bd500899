import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { eventsOf } from "../src/answers";
import type { Verdict } from "../src/delivery";
import { DirectoryStorage, MemoryStorage, Onward, QueueFull, RequestRefused, Unreachable, type Queued } from "../src/index";
import { Queue, withdrawalOf } from "../src/queue";
import { Sender } from "../src/sender";
import { Service, until } from "./service";

const NOBODY = "http://127.0.0.1:9";
let service: Service;

before(async () => {
  service = await Service.start();
});

after(() => service.kill());

async function answered(onward: Onward): Promise<string> {
  const body = { model: await onward.model(), prompt: "def f" };
  return (await onward.generate("/v1/completions", body, onward.session())).info.inferenceId;
}

test("an answer, a stream and feedback on both", async () => {
  const onward = new Onward({ url: `${service.url}/v1/` });
  const session = onward.session({ workload: "suggestion", learn: false, harness: "tests/1" });
  const body = { model: await onward.model(), prompt: "def f" };
  const whole = await onward.generate("/v1/completions", body, session);
  assert.equal(whole.body.choices[0].text, "hello");
  assert.equal(whole.info.sessionId, session.sessionId);
  assert.equal(whole.info.policyVersion, "1");
  const streamed = await onward.stream("/v1/completions", body, session.with({ learn: true }));
  let text = "";
  for await (const event of streamed.events) text += event.choices[0]?.text ?? "";
  assert.equal(text, "hello");
  const ids = [
    await onward.feedback({ inferenceId: whole.body.id, metric: "accepted", value: true }),
    await onward.feedback({ inferenceId: streamed.info.inferenceId, metric: "survived_1h", snapshot: "  hello\n" }),
    await onward.feedback({ sessionId: session.sessionId, metric: "rating", value: 1 }),
  ];
  assert.equal(await onward.flush(), 0);
  assert.deepEqual(await Promise.all(ids.map((id) => service.statusOf(id))), ["recorded", "recorded", "recorded"]);
  await onward.withdraw(ids[0] ?? "");
  assert.equal(await onward.close(), 0);
  await until(async () => (await service.statusOf(ids[0] ?? "")) === "withdrawn", "the withdrawal");
});

const SAID = { messages: [{ role: "user", content: "hi" }] };
const PROTOCOLS: [path: string, body: object, partOf: (event: any) => string | undefined][] = [
  ["/v1/chat/completions", SAID, (event) => event.choices[0]?.delta.content],
  ["/v1/completions", { prompt: "def f" }, (event) => event.choices[0]?.text],
  ["/v1/responses", { input: "hi" }, (event) => (event.type === "response.output_text.delta" ? event.delta : "")],
  ["/v1/messages", { ...SAID, max_tokens: 8 }, (event) => event.delta?.text],
  ["/v1/fim/completions", { prompt: "def f", suffix: "" }, (event) => event.choices[0]?.delta.content],
  ["/infill", { input_prefix: "def f", input_suffix: "" }, (event) => event.content],
];

for (const [path, body, partOf] of PROTOCOLS) {
  test(`a stream of ${path} ends with its answer`, async () => {
    const onward = new Onward({ url: service.url });
    const whole = { ...body, model: await onward.model() };
    const { info, events } = await onward.stream(path, whole, onward.session());
    let text = "";
    for await (const event of events) text += partOf(event) ?? "";
    assert.equal(text, "hello");
    const id = await onward.feedback({ inferenceId: info.inferenceId, metric: "accepted", value: true });
    assert.equal(await onward.close(), 0);
    assert.equal(await service.statusOf(id), "recorded");
  });
}

test("a stream that breaks off is no answer", async () => {
  for (const piece of ['data: {"type": "message_start"}\n\n', 'data: {"content": "a", "stop": false}\n\ndata: {"con', ""]) {
    await assert.rejects(async () => {
      for await (const _ of eventsOf(new Response(piece))) continue;
    }, Unreachable);
  }
});

test("errors say whether asking again helps", async () => {
  const onward = new Onward({ url: service.url });
  const session = onward.session();
  await assert.rejects(onward.generate("/v1/completions", { model: "other", prompt: "x" }, session), (error) => {
    assert.ok(error instanceof RequestRefused);
    assert.deepEqual([error.status, error.param], [404, "model"]);
    return true;
  });
  await assert.rejects(new Onward({ url: NOBODY }).model(), Unreachable);
  await assert.rejects(onward.generate("/v1/completions", {}, session, AbortSignal.abort()), { name: "AbortError" });
  await assert.rejects(onward.feedback({ metric: "accepted", value: true }), /an answer or a session/);
  await assert.rejects(onward.feedback({ inferenceId: "i", metric: "accepted" }), /give a value/);
  assert.throws(() => new Onward({ url: "localhost:8700" }), /must begin with http/);
  assert.equal((await onward.outcomes()).get("survived_1h")?.measure, "survived");
});

test("what the service refuses is told and holds up nothing", async () => {
  const refused: string[] = [];
  const onward = new Onward({
    url: service.url,
    onRefused: (request, error) => refused.push(`${request.requestId} ${error.status} ${error.param}`),
  });
  const inferenceId = await answered(onward);
  const wrong = await onward.feedback({ inferenceId, metric: "no_such_metric", value: true });
  const right = await onward.feedback({ inferenceId, metric: "accepted", value: true });
  assert.equal(await onward.close(), 0);
  assert.deepEqual(refused, [`${wrong} 400 metric_name`]);
  assert.equal(await service.statusOf(right), "recorded");
});

test("nothing overtakes what it withdraws or supersedes", async () => {
  const queue = new Queue(new MemoryStorage(), 10);
  const told = (requestId: string, supersedes?: string): Queued => {
    return { requestId, method: "POST", path: "/v1/feedback", body: JSON.stringify({ supersedes }) };
  };
  const ofOther = [told("other"), withdrawalOf("other")];
  const ofFirst = [told("first"), told("amended", "first"), withdrawalOf("first"), withdrawalOf("amended")];
  for (const request of [...ofFirst, ...ofOther]) await queue.put(request);
  const sent: string[] = [];
  let fails = true;
  const send = async ({ requestId }: Queued): Promise<Verdict> => {
    sent.push(requestId);
    if (requestId !== "first" || !fails) return { kind: "acknowledged" };
    return { kind: "later", why: "500: the store is away", ofAll: false, waitMs: 0 };
  };
  const unwanted = () => assert.fail("nothing is refused, and nothing fails");
  const sender = new Sender(queue, send, unwanted, unwanted);
  sender.wake();
  await until(() => sender.problem, "a failed try");
  assert.deepEqual(sent.splice(0), ["first", "other", "withdrawal-other"]);
  fails = false;
  assert.equal(await sender.close(120_000), 0);
  assert.deepEqual(sent, ofFirst.map((request) => request.requestId));
});

test("a full queue refuses and drops nothing", async () => {
  const onward = new Onward({ url: NOBODY, storage: new MemoryStorage(), queueEntries: 2, closeTimeoutMs: 0 });
  const given = { inferenceId: "i", metric: "accepted", value: true };
  await onward.feedback(given);
  await onward.feedback(given);
  await assert.rejects(onward.feedback(given), QueueFull);
  await until(() => onward.problem, "a failed try");
  assert.match(onward.problem ?? "", /does not answer/);
  assert.equal(await onward.queued(), 2);
  assert.equal(await onward.close(), 2);
});

test("another program at the address refuses nothing", async () => {
  const onward = new Onward({ url: `${service.url}/elsewhere`, closeTimeoutMs: 0 });
  await onward.feedback({ inferenceId: "i", metric: "accepted", value: true });
  await until(() => onward.problem, "a failed try");
  assert.match(onward.problem ?? "", /404/);
  assert.equal(await onward.close(), 1);
});

test("nothing is lost or told twice when the service, then the client, is killed", async () => {
  const mortal = await Service.start();
  const storage = new DirectoryStorage(join(mortal.directory, "feedback"));
  const inferenceId = await answered(new Onward({ url: mortal.url }));
  const arguments_ = [join(__dirname, "forever.js"), mortal.url, join(mortal.directory, "feedback"), inferenceId];
  const client = spawn(process.execPath, arguments_, { stdio: ["ignore", "pipe", "inherit"] });
  const given: string[] = [];
  const lines = createInterface({ input: client.stdout }).on("line", (line) => given.push(line));
  const over = new Promise((resolve) => lines.once("close", resolve));
  await until(() => given.length > 20, "feedback");
  await mortal.kill();
  const before = given.length;
  await until(() => given.length > before + 20, "feedback without a service");
  client.kill("SIGKILL");
  await over;
  const left = (await storage.keys()).length;
  assert.ok(left > 20, `${left} are queued`);
  await mortal.start();
  const next = new Onward({ url: mortal.url, storage, closeTimeoutMs: 60_000 });
  assert.equal(await next.close(), 0);
  assert.equal(await mortal.statusOf(given.at(-1) ?? ""), "recorded"); // it is in the store, and all before it
  await mortal.expect(given);
  await mortal.kill();
});
