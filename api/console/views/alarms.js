// What monitors found: figures, what it holds back, and the operator's word that it is known.

import { at, make, named, number, plain, refill, state, time } from "../dom.js";
import { ordering } from "../order.js";
import { get } from "../wire.js";

const figure = value => Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));

const HOLDS = { ack: "Releases that it held go on.", unack: "It holds releases again." };
const KNOWN = { ack: "It is known.", unack: "It is open, as if nobody had acknowledged it." };
const TITLES = { ack: "acknowledge", unack: "take back that somebody knows" };
const UNDO = { ack: "unack", unack: "ack" };

const wish = (kind, alarm) => ({
  title: `${TITLES[kind]}: ${plain(alarm.monitor)}`,
  meaning: alarm.holds.length ? `${KNOWN[kind]} ${HOLDS[kind]}` : KNOWN[kind],
  path: `v1/alarms/${encodeURIComponent(alarm.alarm_id)}/${kind}`,
  scope: "operate",
  word: kind === "ack" ? "note" : null,
  usual: null,
  foresee: null,
  undo: async () => () => wish(UNDO[kind], alarm),
});

const BUTTONS = { opened: ["acknowledge", "ack"], acknowledged: ["take it back", "unack"] };

/** The operator's word: that it is known, or no longer; a closed alarm needs none. */
function word(alarm) {
  const [name, kind] = BUTTONS[alarm.state] ?? [];
  return kind ? ordering(name, kind, wish(kind, alarm)) : null;
}

function link({ docs }) {
  const found = make("a", "", "What it means");
  found.href = docs;
  return found;
}

function row(alarm) {
  const figures = Object.entries(alarm.figures).map(([name, value]) =>
    make("div", "named", make("dt", "", plain(name)), make("dd", "", figure(value))));
  const known = alarm.acknowledged_at
    && `acknowledged ${time(alarm.acknowledged_at)} by ${alarm.acknowledged_by}${alarm.note ? `: ${alarm.note}` : ""}`;
  const line = make("div", `row alarm ${alarm.severity}`,
    make("b", "", plain(alarm.monitor)), make("span", "", state(alarm.severity), state(alarm.state)),
    make("p", "", alarm.meaning),
    make("p", "", alarm.advice && `To do: ${alarm.advice} `, link(alarm)),
    make("dl", "facts", ...figures),
    make("small", "meta", [
      `${alarm.namespace}${alarm.workload ? ` · ${alarm.workload}` : ""}`,
      `seen ${time(alarm.window_start)} to ${time(alarm.window_end)}`,
      `opened ${time(alarm.opened_at)}`,
      alarm.holds.length && `holds ${alarm.holds.map(plain).join(", ")}`,
      known,
      alarm.closed_at && `closed ${time(alarm.closed_at)}`,
    ].filter(Boolean).join(" · ")),
    make("span", "actions", word(alarm)));
  line.tabIndex = -1;
  return make("li", "", line);
}

/** Tells the tab how many nobody has acknowledged. */
export async function count() {
  const opened = (await get("v1/alarms")).alarms.filter(alarm => alarm.state === "opened");
  at("alarm-count").textContent = opened.length;
  at("alarm-count").hidden = !opened.length;
  at("alarm-count").classList.toggle("critical", opened.some(alarm => alarm.severity === "critical"));
}

export async function refresh() {
  const { alarms } = await get(`v1/alarms${at("closed").checked ? "?state=all" : ""}`);
  refill(at("alarm-list"), alarms.map(row), "No alarm is open: no monitor sees anything wrong.");
  return count();
}

// ---------------------------------------------------------------------------------------------- exclusions

/** What is written in the form, as the route takes it. */
function wished() {
  const { users, turns, from, to, version } = at("exclude").elements;
  const names = field => field.value.split(/[\s,]+/).filter(Boolean);
  return {
    users: names(users), turns: names(turns), version: version.value ? Number(version.value) : null,
    from: from.value.trim() || null, to: to.value.trim() || null,
  };
}

const looking = () => ({
  title: "what excluding these turns would change",
  meaning: "It changes nothing.",
  path: "v1/exclusions/preview",
  scope: "admin",
  more: wished(),
  undo: async () => null,
  final: "Below.",
  done: found => foreseen(found, wished()),
});

const excluding = more => ({
  title: "exclude these turns from learning",
  meaning: "They teach nothing any more, and what was learned from them is left behind.",
  path: "v1/exclusions",
  scope: "admin",
  word: "why",
  needed: true,
  more,
  undo: async () => null,
  final: "An exclusion is not taken back.",
  done: found => foreseen(found, null),
});

function foreseen(found, more) {
  const { selected, learned, abandoned, updates, again, again_s: seconds, back_to: back, soon } = found;
  at("exclude-foreseen").replaceChildren(
    named("turns excluded", number(selected)),
    named("of which versions learned", number(learned)),
    named("left behind", `${number(abandoned.length)} versions, ${number(updates)} updates`),
    named("gone on from", back === null ? "the newest version: none learned from these" : `version ${back}${soon.servable === "rebuild" ? `, made again first in about ${soon.about_s} s` : ""}`),
    named("learned again", `${number(again)} other turns, about ${number(Math.ceil(seconds))} s of learning`));
  at("exclude-do").replaceChildren(...more ? [ordering("exclude them", "", excluding(more))] : []);
}

export function begin(again) {
  at("exclude-look").append(ordering("show what it would change", "", looking));
  at("exclude").addEventListener("input", () => { at("exclude-foreseen").replaceChildren(); at("exclude-do").replaceChildren(); });
  at("exclude").addEventListener("submit", event => event.preventDefault());
  at("closed").addEventListener("change", again);
}
