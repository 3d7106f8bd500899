/** A client of the Onward service: answers, and feedback that is neither lost nor counted twice. */

import { randomUUID } from "node:crypto";

import { eventsOf, infoOf, requireSuccess, type Answer, type StreamedAnswer } from "./answers";
import { verdictOn, type Verdict } from "./delivery";
import { Unreachable } from "./errors";
import { Queue, withdrawalOf, type Queued } from "./queue";
import { Sender, type OnRefused } from "./sender";
import { Session, type SessionOptions } from "./session";
import { MemoryStorage, type Storage } from "./storage";

export type { Answer, AnswerInfo, StreamedAnswer } from "./answers";
export { QueueFull, RequestRefused, Unreachable } from "./errors";
export type { Queued } from "./queue";
export type { OnRefused } from "./sender";
export { Session, type SessionOptions } from "./session";
export { DirectoryStorage, MemoryStorage, type Storage } from "./storage";

export const VERSION = "0.1.0";
const PREFIXES = /^(chatcmpl-|cmpl-|msg_|resp_)/;

export interface OnwardOptions {
  /** The service's URL, with or without `/v1`. */
  url: string;
  apiKey?: string | undefined;
  /** Where feedback waits; without one it is kept in memory, and lost with the process. */
  storage?: Storage;
  /** How many requests may wait. */
  queueEntries?: number;
  /** Of each request, its whole answer included. */
  timeoutMs?: number;
  closeTimeoutMs?: number;
  /** The name of the program in the header `User-Agent`. */
  userAgent?: string;
  /** Called with feedback that the service refuses for good. */
  onRefused?: OnRefused;
  /** Called with errors of the storage, and of `onRefused`. */
  onError?: (error: unknown) => void;
}

/** Feedback: one of `value`, `finalText`, `diff` and `snapshot`, on one of `inferenceId` and `sessionId`. */
export interface Feedback {
  inferenceId?: string;
  sessionId?: string;
  metric: string;
  value?: boolean | number | string;
  finalText?: string;
  diff?: string;
  snapshot?: string;
  source?: "client" | "user" | "environment" | "judge";
  user?: string;
  tags?: Record<string, string>;
  supersedes?: string;
  toolCallId?: string;
  evidence?: string;
  observedAt?: Date;
}

export interface OutcomeInfo {
  name: string;
  type: "boolean" | "number" | "text";
  /** What it says, and when to send it. */
  meaning: string | null;
  level: "inference" | "session" | null;
  role: string | null;
  minimum: number | null;
  maximum: number | null;
  measure: "kept" | "distance" | "survived" | null;
  wait_s: number;
}

export class Onward {
  private readonly url: string;
  private readonly queue: Queue;
  private readonly sender: Sender;
  private readonly timeoutMs: number;

  /** Make a client; what an earlier process left in the storage is sent from now on. Throws for a URL that is none. */
  constructor(private readonly options: OnwardOptions) {
    if (!/^https?:\/\//.test(options.url)) throw new Error(`url: "${options.url}" must begin with http:// or https://`);
    this.url = options.url.replace(/\/+$/, "").replace(/\/v1$/, "");
    this.timeoutMs = options.timeoutMs ?? 30_000;
    this.queue = new Queue(options.storage ?? new MemoryStorage(), options.queueEntries ?? 10_000);
    const onError = options.onError ?? ((error) => console.error("onward:", error));
    const onRefused = options.onRefused ?? ((request, error) => console.error("onward:", request.requestId, error));
    this.sender = new Sender(this.queue, (request) => this.deliver(request), onRefused, onError);
    this.sender.wake();
  }

  /** The reason why feedback waits, if the latest try to send it failed. */
  get problem(): string | undefined {
    return this.sender.problem;
  }

  /** Return the number of requests that the service has not acknowledged. */
  queued(): Promise<number> {
    return this.queue.size();
  }

  session(options: SessionOptions = {}): Session {
    return new Session(options);
  }

  /** Ask for a whole answer. Throws RequestRefused, Unreachable, and `signal`'s reason. */
  async generate(path: string, body: object, session: Session, signal?: AbortSignal): Promise<Answer> {
    const response = await this.ask(path, body, session, signal);
    return { info: infoOf(response.headers), body: await response.json() };
  }

  /** Ask for a streamed answer; its info is there before its events. Throws as `generate`. */
  async stream(path: string, body: object, session: Session, signal?: AbortSignal): Promise<StreamedAnswer> {
    const response = await this.ask(path, { ...body, stream: true }, session, signal);
    return { info: infoOf(response.headers), events: eventsOf(response) };
  }

  /** Return the name of the model that the service serves. Throws as `generate`. */
  async model(): Promise<string> {
    return (await this.read("/v1/models")).data[0].id;
  }

  /** Return what feedback may be about, by name. Throws as `generate`. */
  async outcomes(): Promise<Map<string, OutcomeInfo>> {
    const { data } = (await this.read("/v1/outcomes")) as { data: OutcomeInfo[] };
    return new Map(data.map((outcome) => [outcome.name, outcome]));
  }

  /** Queue feedback, and return its id: it is kept when this resolves. Throws QueueFull, and errors of the storage. */
  async feedback(given: Feedback): Promise<string> {
    const feedbackId = randomUUID();
    await this.put({
      requestId: feedbackId,
      method: "POST",
      path: "/v1/feedback",
      body: JSON.stringify(feedbackBody(feedbackId, given)),
    });
    return feedbackId;
  }

  /** Queue the withdrawal of feedback. Throws as `feedback`. */
  async withdraw(feedbackId: string): Promise<void> {
    await this.put(withdrawalOf(feedbackId));
  }

  /** Wait until everything is sent, and return how many requests are left after `timeoutMs`. */
  flush(timeoutMs = 5000): Promise<number> {
    return this.sender.flush(timeoutMs);
  }

  /** Send for up to `closeTimeoutMs`, then no more; return how many requests are left, lost if they are in memory. */
  async close(): Promise<number> {
    const left = await this.sender.close(this.options.closeTimeoutMs ?? 5000);
    if (left > 0 && !this.queue.isDurable) console.error(`onward: ${left} requests with feedback are lost`);
    return left;
  }

  private async put(request: Queued): Promise<void> {
    await this.queue.put(request);
    this.sender.wake();
  }

  private async ask(path: string, body: object, session: Session, signal?: AbortSignal): Promise<Response> {
    const response = await this.fetch("POST", path, JSON.stringify(body), session.headers, signal);
    await requireSuccess(response);
    if (this.sender.problem !== undefined) this.sender.hasten(); // it is there again
    return response;
  }

  private async read(path: string): Promise<any> {
    const response = await this.fetch("GET", path);
    await requireSuccess(response);
    return response.json();
  }

  private async deliver(request: Queued): Promise<Verdict> {
    try {
      const response = await this.fetch(request.method, request.path, request.body);
      return verdictOn(response.status, response.headers, await response.text());
    } catch (error) {
      return { kind: "later", why: `the service does not answer: ${reasonOf(error)}`, ofAll: true, waitMs: 0 };
    }
  }

  private async fetch(
    method: string,
    path: string,
    body?: string,
    headers: Record<string, string> = {},
    signal?: AbortSignal,
  ): Promise<Response> {
    const timeout = AbortSignal.timeout(this.timeoutMs);
    try {
      return await fetch(this.url + path, {
        method,
        headers: { ...this.ownHeaders(), ...headers },
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
        ...(body && { body }),
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Unreachable(reasonOf(error));
    }
  }

  private ownHeaders(): Record<string, string> {
    return {
      "content-type": "application/json",
      "user-agent": this.options.userAgent ?? `onward-client/js ${VERSION}`,
      ...(this.options.apiKey && { authorization: `Bearer ${this.options.apiKey}` }),
    };
  }
}

/** Return the body of feedback. Throws for feedback on nothing or on two things, and for two values or none. */
function feedbackBody(feedbackId: string, given: Feedback): object {
  if ((given.inferenceId === undefined) === (given.sessionId === undefined)) {
    throw new Error("feedback is about an answer or a session: give one of inferenceId and sessionId");
  }
  const said = [given.value, given.finalText, given.diff, given.snapshot].filter((value) => value !== undefined);
  if (said.length !== 1 || (typeof said[0] === "number" && !Number.isFinite(said[0]))) {
    throw new Error("give a value, or one of finalText, diff and snapshot");
  }
  return {
    feedback_id: feedbackId,
    inference_id: given.inferenceId?.replace(PREFIXES, ""),
    session_id: given.sessionId,
    metric_name: given.metric,
    value: given.value,
    final_text: given.finalText,
    diff: given.diff,
    snapshot: given.snapshot,
    source: given.source ?? "client",
    user: given.user,
    tags: given.tags,
    supersedes: given.supersedes,
    tool_call_id: given.toolCallId,
    evidence: given.evidence,
    observed_at: (given.observedAt ?? new Date()).toISOString(),
  };
}

function reasonOf(error: unknown): string {
  const cause = (error as { cause?: { message?: string; code?: string } }).cause;
  return cause?.message || cause?.code || String(error);
}
