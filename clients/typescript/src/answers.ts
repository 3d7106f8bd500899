/** What the headers of an answer say, and the events of a streamed one. */

import { errorIn } from "./delivery";
import { RequestRefused, Unreachable } from "./errors";

export interface AnswerInfo {
  /** Of several choices one each, in order. */
  inferenceIds: string[];
  /** Of the first choice. */
  inferenceId: string;
  sessionId: string;
  /** The version of the policy that answered: `12`, or `acme@12`. */
  policyVersion: string;
  trainable: boolean;
  /** Names of fields of the request that change nothing. */
  ignored: string[];
}

export interface Answer {
  info: AnswerInfo;
  body: any;
}

export interface StreamedAnswer {
  info: AnswerInfo;
  /** The events in the protocol's form, `[DONE]` left out, until the answer is whole. Throws Unreachable for a stream that breaks off. */
  events: AsyncGenerator<any, void, void>;
}

export function infoOf(headers: Headers): AnswerInfo {
  const inferenceIds = listed(headers, "x-onward-inference-id");
  const [inferenceId] = inferenceIds;
  if (inferenceId === undefined) throw new Unreachable("an answer without x-onward-inference-id: is it the service's URL?");
  return {
    inferenceIds,
    inferenceId,
    sessionId: headers.get("x-onward-session-id") ?? "",
    policyVersion: headers.get("x-onward-policy-version") ?? "",
    trainable: headers.get("x-onward-trainable") === "true",
    ignored: listed(headers, "x-onward-ignored"),
  };
}

/** Throw RequestRefused or Unreachable for an answer that is none. */
export async function requireSuccess(response: Response): Promise<void> {
  if (response.ok) return;
  const error = errorIn(await response.text());
  if (error && response.status < 500 && response.status !== 408 && response.status !== 429) {
    throw new RequestRefused(response.status, error.message, error.param, error.code);
  }
  throw new Unreachable(`${response.status}: ${error?.message ?? response.statusText}`);
}

/** Read server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) until the answer is whole.
 *
 * OpenAI's routes say so by `[DONE]`, Anthropic's by `message_stop`, and llama.cpp's by a part with `stop` true. */
export async function* eventsOf(response: Response): AsyncGenerator<any, void, void> {
  if (response.body === null) throw new Unreachable("a stream without a body");
  for await (const data of dataOf(response.body)) {
    if (data === "[DONE]") return;
    const error = errorIn(data);
    if (error) throw new Unreachable(error.message);
    const event = JSON.parse(data);
    yield event;
    if (event.type === "message_stop" || event.stop === true) return;
  }
  throw new Unreachable("the stream broke off");
}

async function* dataOf(body: NonNullable<Response["body"]>): AsyncGenerator<string, void, void> {
  let rest = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice("data: ".length).trimEnd();
  }
}

function listed(headers: Headers, name: string): string[] {
  return (headers.get(name) ?? "").split(",").filter((item) => item !== "");
}
