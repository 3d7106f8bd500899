// Lag and health of each stage.

import { at, bytes, duration, fill, make, number, percent, plain, time } from "../dom.js";
import { get } from "../wire.js";

const SILENT_S = 5;
let before = null;  // how long engines had worked, and when that was asked
const counts = found => Object.entries(found ?? {}).map(([name, count]) => `${number(count)} ${plain(name)}`).join(", ") || "–";
const card = (title, value, ...notes) => make("div", "card", make("h3", "", title), make("p", "figure", value),
  ...notes.map(note => make("small", "block", note)));

/** The header's words; the status that they come from. */
export async function header() {
  const status = await get("v1/status");
  at("model").textContent = status.model;
  at("live").textContent = `version ${status.live} live`;
  at("live").className = "state live";
  const wrong = Object.entries(status.readiness.components).filter(([, state]) => state !== "ok");
  at("ready").textContent = wrong.length ? wrong.map(([name, state]) => `${name}: ${state}`).join("; ") : "all parts ready";
  at("ready").className = `state ${wrong.length ? "wrong" : "ok"}`;
  return status;
}

/** Since it was asked before; before that nobody can say. */
function idleShare(busy_s) {
  const now_s = performance.now() / 1000, last = before;
  before = { busy_s, now_s };
  return last ? Math.max(0, 1 - (busy_s - last.busy_s) / (now_s - last.now_s)) : null;
}

/** What all namespaces did together: not told to one of several. */
function ofAll(status, tokens) {
  const idle = idleShare(status.busy_s);
  return [
    card("Turns answered", number(status.turns.answered), "by this process"),
    card("Tokens generated", number(tokens.generated), "by this process"),
    card("Engines idle", idle === null ? "–" : percent(idle), "of the last seconds, as this process sees them"),
    card("Cached prompt tokens", tokens.cached_share === null ? "–" : percent(tokens.cached_share),
      `${number(tokens.cached)} of ${number(tokens.cached + tokens.prefilled)}`)];
}

function cards(status) {
  const { last_minute: minute, tokens } = status;
  at("cards").replaceChildren(
    ...(tokens === null ? [] : ofAll(status, tokens)),
    card("Your last minute", number(minute.turns), counts({ requests: minute.requests, errors: minute.errors }),
      minute.complete ? "all replicas" : "this one alone"),
    card("Versions", number(Object.values(status.versions ?? {}).reduce((sum, count) => sum + count, 0)),
      counts(status.versions)));
}

const PARTS = { log: "log", store: "store", blobs: "versions and other blobs", spool: "spool", hosts: "versions as engines load them" };
const worded = (show, value) => value === null ? "–" : show(value);
const rate = value => `${value.toFixed(value < 100 ? 1 : 0)} /s`;

function speedAndSize({ turns, first_token_s: first, turn_s: whole, tokens_per_s: tokens, queue, disk }) {
  const of = `of your newest ${number(turns)} turns`, { free, ...parts } = disk ?? {};
  at("serving").replaceChildren(
    card("First token", worded(duration, first.p50), `99 %: ${worded(duration, first.p99)}`, of),
    card("Whole turn", worded(duration, whole.p50), `99 %: ${worded(duration, whole.p99)}`, of),
    card("Tokens a second", worded(rate, tokens.p50), `slowest tenth: ${worded(rate, tokens.p10)}`, "of a turn, after its first"),
    queue ? card("Queue", `${worded(number, queue.waiting)} wait`, `${number(queue.running)} run`,
      `wait: ${duration(queue.wait_s.p50)}, 99 %: ${duration(queue.wait_s.p99)}`)
      : disk === null ? "" : card("Queue", "–", "no engine has told how long a request waited"),
    ...Object.entries(parts).map(([name, size]) => card(`Disk: ${PARTS[name] ?? name}`, bytes(size))),
    free === undefined ? "" : card("Disk: free", bytes(free)));
}

export async function refresh() {
  const [status, stages, fleet, serving] = await Promise.all([header(), get("v1/stages"), get("v1/fleet"), get("v1/serving")]);
  cards(status);
  speedAndSize(serving);
  const states = Object.entries(stages.readiness.components);
  const read = new Map(stages.data.map(stage => [stage.stage, stage]));
  const down = new Map(stages.down.map(({ stage, why, since }) => [stage, `${why} (since ${time(since)})`]));
  const others = [...new Set([...states.map(([name]) => name), ...down.keys()])].filter(name => !read.has(name));
  fill(at("stages"), [...stages.data, ...others.map(name => ({ stage: name }))].map(({ stage, topic, behind }) => {
    const state = stages.readiness.components[stage] ?? down.get(stage);
    return [[state === undefined ? stage : `${stage}: ${state}`, state === undefined ? "" : state === "ok" ? "ok" : "wrong"],
      topic, topic === undefined ? "" : behind === null ? (status.turns === null ? "–" : ["the log does not answer", "wrong"]) : number(behind)];
  }), "none");
  fill(at("fleet"), fleet.data.map(engine => [
    engine.name,
    [engine.state, engine.state],
    [engine.lane, engine.lane === "canary" ? "canary" : ""],
    engine.serving,
    engine.target,
    engine.held.join(" "),
    [`${engine.heartbeat_age_s.toFixed(1)} s`, engine.heartbeat_age_s > SILENT_S ? "wrong" : ""],
    [engine.detail, ...Object.entries(engine.refused).map(([version, why]) => `refused ${version}: ${why}`)]
      .filter(Boolean).join("; "),
  ]), "No engine has spoken: here the service has one of its own, or none has started.");
  const reasons = Object.entries(status.turns?.untrainable ?? {}).sort((one, other) => other[1] - one[1]);
  fill(at("untrainable"), reasons.map(([reason, count]) =>
    [plain(reason), number(count), percent(count / Math.max(1, status.turns.answered))]), status.turns ? "None: every turn can be learned from." : "A key with the scope admin shows them.");
}
