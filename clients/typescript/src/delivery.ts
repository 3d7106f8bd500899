/** What an answer of the service means for a request, and how long to wait before the next try. */

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 60_000;
const FINAL = new Set([400, 409, 413, 422]);
const UNKNOWN = new Set(["unknown_inference", "unknown_session", "unknown_feedback"]);
const OF_THIS_ONE = new Set(["another_user", "not_stored"]);

export interface ServiceError {
  message: string;
  param: string | null;
  code: string | null;
}

/** `rejected`: the service will never take it. `later`: it is to be sent again; `ofAll`: others would fare no better now. */
export type Verdict =
  | { kind: "acknowledged" }
  | { kind: "rejected"; status: number; error: ServiceError }
  | { kind: "later"; why: string; ofAll: boolean; waitMs: number };

/** Say what an HTTP answer means. What a proxy or a wrong URL answers refuses nothing. */
export function verdictOn(status: number, headers: Headers, body: string): Verdict {
  if (status >= 200 && status < 300) {
    return parsed(body) === undefined
      ? { kind: "later", why: `${status} without JSON: is it the service's URL?`, ofAll: true, waitMs: 0 }
      : { kind: "acknowledged" };
  }
  const error = errorIn(body);
  if (error && isFinal(status, error.code)) return { kind: "rejected", status, error };
  return {
    kind: "later",
    why: `${status}: ${error?.message ?? "by something that is not the service"}`,
    ofAll: status < 500 || status === 503,
    waitMs: askedWaitMs(headers),
  };
}

/** Say how long to wait after so many failures in a row: at random, so that clients do not return all at once. */
export function waitMs(failures: number): number {
  const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(failures - 1, 16));
  return longest * (0.5 + Math.random() / 2);
}

/** Return the error of an answer that the service itself gave. */
export function errorIn(body: string): ServiceError | undefined {
  const error = (parsed(body) as { error?: Partial<ServiceError> } | null | undefined)?.error;
  if (typeof error?.message !== "string") return undefined;
  return { message: error.message, param: error.param ?? null, code: error.code ?? null };
}

/** Say whether the service will never take this request: other 403s are about the key, as after an erasure. */
function isFinal(status: number, code: string | null): boolean {
  if (FINAL.has(status)) return true;
  return code !== null && ((status === 404 && UNKNOWN.has(code)) || (status === 403 && OF_THIS_ONE.has(code)));
}

function askedWaitMs(headers: Headers): number {
  const ms = headers.get("retry-after-ms");
  const asked = ms === null ? 1000 * Number(headers.get("retry-after")) : Number(ms);
  return Number.isFinite(asked) ? asked : 0;
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}
