/** One conversation, or one editing session: the headers of its requests. */

import { randomUUID } from "node:crypto";

export interface SessionOptions {
  sessionId?: string;
  /** False withdraws the consent to learn from the session's turns. */
  learn?: boolean;
  /** What its turns are for. */
  workload?: string;
  /** The program and its version. */
  harness?: string;
  environment?: "production" | "simulated";
}

export class Session {
  readonly sessionId: string;

  constructor(private readonly options: SessionOptions = {}) {
    this.sessionId = options.sessionId ?? randomUUID();
  }

  /** The headers that put a request into this session. */
  get headers(): Record<string, string> {
    const { learn, workload, harness, environment } = this.options;
    return {
      "x-session-id": this.sessionId,
      ...(learn === false && { "x-onward-learn": "false" }),
      ...(workload !== undefined && { "x-onward-workload": workload }),
      ...(harness !== undefined && { "x-onward-harness": harness }),
      ...(environment !== undefined && { "x-onward-environment": environment }),
    };
  }

  /** The same session with other options, such as `learn: false`. */
  with(options: Omit<SessionOptions, "sessionId">): Session {
    return new Session({ ...this.options, ...options, sessionId: this.sessionId });
  }
}
