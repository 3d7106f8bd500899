// How the service stands and what to do next: the page that an operator opens first.

import { at, make, number, percent, refill, state, time } from "../dom.js";
import { Chart, columns } from "../charts.js";
import { get } from "../wire.js";
import { freezing, newest, order, step } from "./releases.js";

const TURNS = 3000, STEPS = 8;
const NAMES = {
  down: "Down", attacked: "Attacked", worse: "Worse", held: "Held", stuck: "Stuck", frozen: "Frozen", better: "Better",
  "no difference": "No difference", "too early": "Too early to say", first: "As it was given",
};
const KINDS = { down: "bad", attacked: "bad", worse: "bad", held: "even", stuck: "even", frozen: "even", better: "good" };
const ORDERS = { rollback: version => `back to version ${version}`, unpin: () => "unfreeze",
  unhold: version => `let version ${version} go on` };
const quality = new Chart("Quality", "mean reward of a turn, by time, with its 95 % band",
  { over: "time", unit: "reward", show: value => value.toFixed(2) });

const card = (title, value, kind, ...notes) => make("div", "card", make("h3", "", title),
  make("p", `figure ${kind}`, value), ...notes.filter(Boolean).map(note => make("small", "block", note)));

function nextStep({ severity, what, do: advice, view, search, orders }) {
  const link = make("a", "", search ? `see their ${view}` : `see ${view}`);
  link.href = search ? `#${view}/${encodeURIComponent(search)}` : `#${view}`;
  const line = make("div", `row ${severity}`,
    make("p", "", severity === "info" ? null : state(severity), make("b", "", what)), make("p", "", advice),
    make("span", "actions", ...orders.map(({ kind, version }) => kind === "pin" ? freezing() : order(kind, version, ORDERS[kind](version))), link));
  line.tabIndex = -1;
  return make("li", "", line);
}

/** Whether nothing may be green: rewards fall, nothing is released, or somebody attacks, and they may be what the attacker wants. */
export const isWrong = found => found.next.some(step => ["worse", "attacked", "stuck"].includes(step.state));

/** What `GET /v1/overview` says: the state in a word, what to do, and the first cards; `words`: how the newest turns stand to the `best`. */
export function show(found, words, best) {
  at("state").textContent = NAMES[found.state];
  at("state").className = `figure ${KINDS[found.state] ?? ""}`;
  refill(at("next-steps"), found.next.map(nextStep), "Nothing to do.");
  const { lately } = found.improvement;
  at("standing").replaceChildren(
    card("Against its earlier best", { worse: "Worse", better: "Better", "no difference": "As good" }[lately.verdict]
      ?? "Too early to say", lately.verdict === "worse" ? "bad" : lately.verdict === "better" && !isWrong(found) ? "good" : "", words, best),
    card("Serves", `version ${found.live}`, "", found.live_since && `since ${time(found.live_since)} UTC`,
      found.pinned !== null && "releases are frozen"));
}

/** What may change faster than the rest: traffic and alarms. */
function traffic({ last_minute: minute }, { alarms }) {
  const share = minute.requests ? minute.errors / minute.requests : 0;
  const opened = alarms.filter(alarm => alarm.state === "opened");
  at("traffic").replaceChildren(
    card("The last minute", `${number(minute.turns)} turns`, "", `${number(minute.requests)} requests, until ${time(new Date().toISOString())} UTC`,
      `${number(minute.errors)} errors${minute.errors ? `, ${percent(share)}` : ""}`),
    card("Open alarms", number(opened.length), opened.some(alarm => alarm.severity === "critical") ? "bad" : "",
      ...opened.slice(0, 3).map(alarm => alarm.monitor.replaceAll("_", " "))));
}

export async function refresh() {
  const [curves, status, alarms, steps] = await Promise.all(
    [get(`v1/curves?turns=${TURNS}`), get("v1/status"), get("v1/alarms"), newest(STEPS)]);
  traffic(status, alarms);
  const over = pick => columns(curves.quality, row => Date.parse(row.at) / 1000, pick);
  const [xs, lines] = over(({ smooth }) => ({ mean: smooth.mean }));
  quality.draw(xs, lines, { bands: { mean: [over(({ smooth }) => ({ low: smooth.mean_low }))[1].low,
    over(({ smooth }) => ({ high: smooth.mean_high }))[1].high] },
  marks: steps.filter(({ state }) => state === "live").map(({ at: when, version }) => [Date.parse(when) / 1000, `v${version}`]) });
  at("last-releases").replaceChildren(...steps.length ? steps.reverse().map(step)
    : [make("li", "empty", "Nothing was released yet: a version comes once there is feedback to learn from.")]);
}

export function begin() {
  at("overview-charts").append(quality.figure);
}
