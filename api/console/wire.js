// Talks to the service that served the page. The key for reading lives as long as the tab; the admin's only in memory.

import { at } from "./dom.js";

const TIMEOUT_MS = 15000;
const AGAIN_MS = 1000;
const key = at("key");
key.value = sessionStorage.getItem("onward-key") ?? "";
key.addEventListener("change", () => {
  sessionStorage.setItem("onward-key", key.value);
  document.dispatchEvent(new Event("key"));
});

let needsNone = false;  // whether answers come without a key

export const keyForReading = () => key.value;

/** Whether no key is set: whoever reaches the page may do everything. */
export const isOpen = () => needsNone && !key.value;

const headers = text => text ? { Authorization: `Bearer ${text}` } : {};

/** The answer to a request; an error without `status` means that no answer came. */
async function ask(path, options) {
  try {
    return await answered(await fetch(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) }));
  } catch (error) {
    if (error.status) throw error;
    throw new Error(error.name === "TimeoutError" ? `No answer came in ${TIMEOUT_MS / 1000} s` : "The service cannot be reached");
  }
}

async function answered(response) {
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.error?.message ?? `status ${response.status}`), { status: response.status });
  return body;
}

export async function get(path) {
  const signal = AbortSignal.timeout(TIMEOUT_MS), sent = key.value;
  const response = await fetch(path, { headers: headers(sent), cache: "no-store", signal });
  if (!sent && response.ok) needsNone = true;
  else if (response.status === 401) needsNone = false;
  key.placeholder = needsNone ? "none is needed" : "where keys are set";
  key.parentElement.classList.toggle("needless", isOpen());
  return answered(response);
}

export async function post(path, body, adminKey) {
  return ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(adminKey || key.value) },
    body: JSON.stringify(body),
  });
}

/** Server-sent events from `path(last)` on, until `signal`; after a break again from the last one on. `EventSource`
 * would not send a key. */
export async function follow(path, last, signal, take, broken) {
  while (!signal.aborted) {
    try {
      const response = await fetch(path(last), { headers: headers(key.value), cache: "no-store", signal });
      if (!response.ok) await answered(response);
      broken("");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = "";;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const line = event.split("\n").find(each => each.startsWith("data: "));
          if (!line) continue;
          const found = JSON.parse(line.slice(6));
          last = found.sequence;
          take(found);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      broken(`the stream of rewards broke: ${error.message}`);
    }
    await new Promise(wake => setTimeout(wake, AGAIN_MS));
  }
}
