// What users said that is to be erased: what an order would remove and cost, giving one, how far it is, its statement.

import { at, button, duration, make, number, plain, refill, time } from "./dom.js";
import { ask } from "./order.js";
import { get, post, remove } from "./wire.js";

const PATHS = { user: "users", session: "sessions", namespace: "namespaces", organisation: "organisations" };
const MEANING = {
  user: "all that this user said up to now goes from everything that keeps it, and from the weights. Sessions go whole.",
  session: "this session goes from everything that keeps it, and from the weights.",
  namespace: "all that was said in this namespace goes from everything that keeps it, and from the weights.",
  organisation: "all that was said in its namespaces goes, and its policy with every version. Nobody is answered there any more.",
};
const OF_NAMESPACE = ["user", "session"];
const LAST = "This cannot be taken back.";

function erase(event) {
  event.preventDefault();
  const kind = at("erase-kind").value, name = at("erase-name").value.trim(), of = at("erase-namespace").value.trim();
  if (!name) return at("erase-name").focus();
  const looked = !OF_NAMESPACE.includes(kind) ? { [kind]: name } : { [kind]: name, ...of && { namespace: of } };
  const body = {};
  ask({
    title: `Erase a ${kind}`,
    meaning: `${name}: ${MEANING[kind]} ${LAST}`,
    path: `v1/${PATHS[kind]}/${encodeURIComponent(name)}`,
    word: "why",
    needed: true,
    body,
    blind: false,  // what is meant by a name, and of which namespace, the preview says
    typed: name,
    give: remove,
    look: key => post("v1/erasures/preview", looked, key),
    foresee: found => {
      if (OF_NAMESPACE.includes(kind)) body.namespace = found.namespace;  // what was looked at is what is erased
      const where = kind === "organisation" ? [] : [`In namespace ${found.namespace}:`];
      return [...where, ...found.says].map(sentence => make("p", "", sentence));
    },
    done: () => at("erase-form").reset(),
  });
}

/** The signed statement as a file. */
function download(order) {
  return button("statement", "statement", () => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([order.statement], { type: "application/json" }));
    link.download = `erasure-${order.erasure_id}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  }, "What was removed where, signed; `onward erase --verify` checks it");
}

const removed = step => Object.entries(step.removed ?? {}).map(([what, count]) => `${number(count)} ${plain(what)}`);

function places({ steps }) {
  const said = Object.entries(steps).map(([place, step]) =>
    [plain(place), [...removed(step), step.note].filter(Boolean).join(", ")].filter(Boolean).join(": "));
  return said.length ? `Done: ${said.join(" · ")}` : "Nothing is done yet.";
}

/** What it was said to cost when it was ordered, and how much of that is spent. */
function cost({ foreseen, relearning = [] }) {
  if (!foreseen) return "Nobody was told beforehand what it costs.";
  const said = foreseen.updates
    ? `Said beforehand: ${number(foreseen.updates)} updates to make again, about ${duration(foreseen.seconds)}.`
    : "Said beforehand: nothing is to be learned again.";
  const made = relearning.reduce((sum, told) => sum + (told.made_again ?? 0), 0);
  return made ? `${said} Made again so far: ${number(made)}.` : said;
}

/** A bar over the updates that are made again, while that goes on. */
function bar({ relearning = [] }) {
  const going = relearning.filter(told => told.updates && !told.ended_at);
  if (!going.length) return null;
  const shown = make("progress");
  shown.max = going.reduce((sum, told) => sum + told.updates, 0);
  shown.value = going.reduce((sum, told) => sum + (told.made_again ?? 0) + (told.emptied ?? 0) + (told.lost ?? 0), 0);
  return shown;
}

function due(order) {
  if (order.done_at) return make("span", "state done", `done ${time(order.done_at)}`);
  const isLate = new Date(order.deadline_at) < new Date();
  return make("span", `state ${isLate ? "wrong" : "waiting"}`, `${isLate ? "overdue since" : "due"} ${time(order.deadline_at)}`);
}

function row(order) {
  const subject = order.kind === "user" ? order.subject.slice(0, 12) : order.subject;
  const line = make("div", "row erasure",
    make("b", "", `erasure ${order.erasure_id}`), make("span", "", due(order)),
    make("p", "", `${order.kind} ${subject} of ${order.namespace}, ${number(order.sessions)} ${order.sessions === 1 ? "session" : "sessions"}`),
    make("p", "", cost(order), " ", bar(order)),
    make("p", "", places(order)),
    order.waits_for ? make("p", "even", `Waits: ${order.waits_for}`) : null,
    make("small", "meta", `${time(order.ordered_at)} by ${order.by}: ${order.why}`),
    make("span", "actions", order.statement ? download(order) : null));
  line.tabIndex = -1;
  return make("li", "", line);
}

export async function refresh() {
  const { data } = await get("v1/erasures");
  const told = await Promise.all(data.map(order => order.done_at ? order : get(`v1/erasures/${order.erasure_id}`)));
  refill(at("erasure-list"), told.map(row), "nothing was ordered to be erased");
}

export function begin() {
  at("erase-form").addEventListener("submit", erase);
}
