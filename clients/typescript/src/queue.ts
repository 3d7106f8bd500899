/** The queue of requests that the service has not acknowledged. */

import { QueueFull } from "./errors";
import type { Storage } from "./storage";

/** A request that may be sent any number of times and counts once. */
export interface Queued {
  requestId: string;
  method: "POST" | "DELETE";
  path: string;
  body: string;
}

const WITHDRAWAL = "withdrawal-";
const MOMENT_DIGITS = 9;

export function withdrawalOf(feedbackId: string): Queued {
  const path = `/v1/feedback/${encodeURIComponent(feedbackId)}`;
  return { requestId: WITHDRAWAL + feedbackId, method: "DELETE", path, body: "" };
}

/** Return a request's own id, and that of the feedback that it withdraws or supersedes, which is to be told first. */
export function idsOf(request: Queued): string[] {
  if (request.method === "DELETE") return [request.requestId, request.requestId.slice(WITHDRAWAL.length)];
  const supersedes = supersededBy(request.body);
  return supersedes === undefined ? [request.requestId] : [request.requestId, supersedes];
}

/** Nothing for a body that was damaged where it was stored: the service says so, and it is set aside. */
function supersededBy(body: string): string | undefined {
  try {
    return (JSON.parse(body) as { supersedes?: string } | null)?.supersedes;
  } catch {
    return undefined;
  }
}

export class Queue {
  private latest = 0;

  constructor(
    private readonly storage: Storage,
    private readonly most: number,
  ) {}

  get isDurable(): boolean {
    return this.storage.isDurable;
  }

  /** Add a request; it is kept when this resolves. Throws QueueFull. */
  async put(request: Queued): Promise<void> {
    const waiting = await this.size();
    if (waiting >= this.most) {
      throw new QueueFull(`${waiting} requests wait to be sent: the service has not answered for long`);
    }
    await this.storage.set(this.nextKey(request.requestId), JSON.stringify(request));
  }

  async size(): Promise<number> {
    return (await this.storage.keys()).length;
  }

  /** Return the keys of what is queued, the oldest first. */
  async keys(): Promise<string[]> {
    return (await this.storage.keys()).sort();
  }

  /** Return a request, unless another program that shares the storage has sent it. */
  async get(key: string): Promise<Queued | undefined> {
    const text = await this.storage.get(key);
    return text === undefined ? undefined : (JSON.parse(text) as Queued);
  }

  async done(key: string): Promise<void> {
    await this.storage.delete(key);
  }

  /** Return a key behind all earlier ones: it begins with the time. */
  private nextKey(requestId: string): string {
    this.latest = Math.max(Date.now(), this.latest + 1);
    return `${this.latest.toString(36).padStart(MOMENT_DIGITS, "0")}-${requestId}`;
  }
}
