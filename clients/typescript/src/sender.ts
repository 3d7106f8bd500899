/** The loop that sends a queue. */

import { waitMs, type Verdict } from "./delivery";
import { RequestRefused } from "./errors";
import { idsOf, type Queue, type Queued } from "./queue";

export type OnRefused = (request: Queued, error: RequestRefused) => void;
type Later = Extract<Verdict, { kind: "later" }>;

export class Sender {
  /** The reason why feedback waits, if the latest try to send it failed. */
  problem: string | undefined;
  private failures = 0;
  private isClosed = false;
  private isAskedAgain = false;
  private rounds: Promise<void> | undefined;
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly queue: Queue,
    private readonly send: (request: Queued) => Promise<Verdict>,
    private readonly onRefused: OnRefused,
    private readonly onError: (error: unknown) => void,
  ) {}

  /** Send soon; during a pause after a failure, when it is over. */
  wake(): void {
    if (this.timer === undefined) this.start();
  }

  /** End a pause, if there is one: somebody waits, or the service answers again. */
  hasten(): void {
    this.failures = 0;
    this.start();
  }

  /** Send until nothing is queued, and return how many requests are left after `timeoutMs`. */
  async flush(timeoutMs: number): Promise<number> {
    const deadline = Date.now() + timeoutMs;
    for (;;) {
      this.hasten();
      await within(deadline - Date.now(), this.rounds ?? Promise.resolve());
      const left = await this.queue.size();
      if (left === 0 || Date.now() >= deadline) return left;
      await within(Math.min(200, deadline - Date.now()), new Promise(() => undefined));
    }
  }

  /** Flush, then send no more; return how many requests are left. */
  async close(timeoutMs: number): Promise<number> {
    const left = await this.flush(timeoutMs);
    this.isClosed = true;
    clearTimeout(this.timer);
    await this.rounds;
    return left;
  }

  private start(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.isAskedAgain = true;
    this.rounds ??= this.work();
  }

  private async work(): Promise<void> {
    await Promise.resolve(); // `rounds` is set first
    while (this.isAskedAgain && !this.isClosed) {
      this.isAskedAgain = false;
      this.plan(await this.round());
    }
    this.rounds = undefined; // at once, so that nobody asks in vain in between
  }

  /**
   * Send each queued request once, in order; return why some are left.
   *
   * One that waits keeps back those that withdraw or supersede it: if they came first they would be refused for good,
   * as being about unknown feedback, and what was withdrawn would count.
   */
  private async round(): Promise<Later | undefined> {
    let later: Later | undefined;
    const waiting = new Set<string>();
    try {
      for (const key of await this.queue.keys()) {
        if (later?.ofAll || this.isClosed) break;
        const request = await this.queue.get(key);
        if (request === undefined) continue;
        const ids = idsOf(request);
        const isKeptBack = ids.some((id) => waiting.has(id));
        const verdict = isKeptBack ? undefined : await this.send(request);
        if (verdict !== undefined && verdict.kind !== "later") {
          await this.settle(key, request, verdict);
        } else {
          later = verdict ?? later;
          for (const id of ids) waiting.add(id);
        }
      }
    } catch (error) {
      this.onError(error); // of the storage, or of the user's `onRefused`
      return { kind: "later", why: String(error), ofAll: true, waitMs: 0 };
    }
    return later;
  }

  private async settle(key: string, request: Queued, verdict: Exclude<Verdict, Later>): Promise<void> {
    await this.queue.done(key);
    if (verdict.kind === "acknowledged") return;
    const { message, param, code } = verdict.error;
    this.onRefused(request, new RequestRefused(verdict.status, message, param, code));
  }

  private plan(later: Later | undefined): void {
    this.problem = later?.why;
    this.failures = later === undefined ? 0 : this.failures + 1;
    if (later === undefined || this.isClosed) return;
    this.isAskedAgain = false; // what was queued meanwhile waits as well
    this.timer = setTimeout(() => this.start(), Math.max(waitMs(this.failures), later.waitMs));
    this.timer.unref(); // a program may end: what is queued stays
  }
}

/** Wait for something, and no longer than `ms`. */
async function within(ms: number, awaited: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, Math.max(0, ms))));
  await Promise.race([awaited, timeout]);
  clearTimeout(timer);
}
