// Versions, what became of them, and the operator's word.

import { at, duration, make, named, number, percent, plain, refill, signed, state, time } from "../dom.js";
import { ordering } from "../order.js";
import { get } from "../wire.js";

const VERSIONS = 60, STEPS = 100;
const OPPOSITE = { pin: "unpin", unpin: "pin", hold: "unhold", unhold: "hold" };
const MEANING = {
  promote: "Serve it now, to everybody.",
  hold: "Do nothing with it until it is promoted, rolled back or unheld.",
  unhold: "Let it go on.",
  rollback: "Serve it again; the later ones are rolled back.",
  pin: "Serve it, and release nothing else until it is unpinned.",
  unpin: "Release versions again.",
};
const WENT = { live: "went live", canary: "canary began" };  // a step is of its moment: a later one may follow
const WORDS = { rollback: "roll back to" };
const NO_REASON = "ordered in the console";
let before = null;  // the version before which the list begins; null: the newest
let next = null;  // where its next page begins

/** What may be done with a version, as far as its state tells; the controller has the last word. */
function orders(policy, standing) {
  if (policy.version === standing.live) return [standing.pinned === policy.version ? "unpin" : "pin"];
  if (["retired", "rolled_back"].includes(policy.state)) return policy.servable === "lost" ? [] : ["rollback"];
  if (policy.state !== "candidate" && policy.state !== "canary") return [];
  return ["promote", standing.held.includes(policy.version) ? "unhold" : "hold"];
}

/** A button that gives an order; `name`: what it says, where that is not the order's own word. */
export const order = (kind, version, name = null) => ordering(name ?? WORDS[kind] ?? kind, kind, wish(kind, version));

const wish = (kind, version) => ({
  title: `${WORDS[kind] ?? kind} version ${version}`,
  meaning: MEANING[kind],
  path: `v1/policies/${version}/${kind}`,
  scope: "admin",
  word: "why",
  usual: NO_REASON,
  foresee: kind === "rollback" ? leftBehind : null,
  undo: async () => OPPOSITE[kind] ? () => wish(OPPOSITE[kind], version) : wayBack(version),
});

/** Freezes what serves at the press: what the page shows may be of a moment ago, and to pin that would let it serve again. */
export const freezing = () => ordering("freeze releases", "pin", () => get("v1/status").then(({ live }) => wish("pin", live)));

/** What makes the order that brings back what serves now; null where that is `version`, or nobody can say: no reason to wait. */
const wayBack = version => get("v1/status").then(({ live }) => live === version ? null : () => wish("rollback", live), () => null);

/** How soon a version could serve again, in words. */
const SOON = {
  now: () => "can serve at once",
  rebuild: ({ about_s: seconds }) => `can serve in about ${duration(seconds)}: it is made again first`,
  lost: ({ lost }) => `cannot serve any more: ${lost}`,
};
const soon = policy => SOON[policy.servable](policy);

/** What a rollback discards, in words, and how long it takes. */
function leftBehind(found) {
  return [named("the version", soon(found)), ...discarded(found)];
}

function discarded({ versions, counted, updates, turns, feedback_hours: hours, reward }) {
  if (!versions.length) return ["Nothing went live since: nothing is left behind."];
  const whole = counted < versions.length ? ` (of the newest ${number(counted)})` : "";
  const span = versions.length > 1 ? `: ${versions[0]} to ${versions.at(-1)}` : `: ${versions[0]}`;
  return [
    named("versions left behind", number(versions.length) + span),
    named("updates", number(updates) + whole),
    named("turns learned from", number(turns) + whole),
    named("span of their feedback", duration(3600 * hours) + whole),
    named("their mean reward less this one's", difference(reward)),
  ];
}

function difference({ difference: found, low, high, turns, base_turns: base }) {
  return found === null || low === null ? `cannot say: ${number(turns)} turns against ${number(base)}`
    : `${signed(found)} (${signed(low)} to ${signed(high)})`;
}

const suiteLine = ({ suite, digest, solutions, turns }) =>
  `${suite} (${digest.slice(0, 12)}, ${number(solutions)} solutions, ${number(turns)} turns left out)`;

/** What a canary waits for, where it is users; else null. */
function waits({ canary, control, until, figures }) {
  const { needed_users: needed, users, control_users: others } = figures;
  if (needed === undefined || Math.min(users, others) >= needed) return null;
  const end = until ? ` At ${time(until)} UTC at the latest it is decided.` : "";
  return make("small", "block", `waits for users: version ${canary} was judged by ${number(users)} of ${number(needed)}, version ${control} by ${number(others)} of ${number(needed)}.${end}`);
}

function row(policy, standing) {
  const held = standing.held.includes(policy.version), pinned = standing.pinned === policy.version;
  const line = make("div", "row version",
    make("b", "", `version ${policy.version}`),
    make("span", "", state(policy.state), held ? make("span", "state held", "held") : null, pinned ? state("pinned") : null),
    make("small", "meta", `${time(policy.created_at)} · from ${policy.parent ?? "nothing"} · ${number(policy.turns)} turns`
      + ` · ${number(policy.updates)} ${policy.updates === 1 ? "update" : "updates"}`),
    ["retired", "rolled_back", "superseded"].includes(policy.state) && make("small", "block", soon(policy)),
    policy.version === standing.experiment?.canary ? waits(standing.experiment) : null,
    policy.verdict ? make("small", "block", `${policy.verdict.proposed ? "proposed" : "cases"}: ${policy.verdict.action}: ${policy.verdict.why}`) : null,
    policy.kept_out.length ? make("small", "block", `kept out of training: ${policy.kept_out.map(suiteLine).join("; ")}`) : null,
    make("span", "actions", ...orders(policy, standing).map(kind => order(kind, policy.version))));
  line.tabIndex = -1;
  return make("li", "", line);
}

/** What the lane of a small crowd's canary served before, and what is decided on. */
function lane({ lane: before, control }) {
  if (!before.length) return "";
  const earlier = before.length > 1 ? `versions ${before[0]} to ${before.at(-1)}` : `version ${before[0]}`;
  return ` It follows ${earlier} there: the lane as a whole is judged, and if it is worse, all of it goes back to version ${control}.`;
}

function canary(running) {
  at("canary").hidden = !running;
  if (!running) return;
  const figures = Object.entries(running.figures).map(([name, value]) => `${plain(name)} ${value.toPrecision(3)}`);
  at("canary").replaceChildren(make("h2", "", "Canary"), make("p", "",
    `Version ${running.canary} against ${running.control} for ${percent(running.share)} of users, since ${time(running.started_at)} UTC.${lane(running)}`),
  make("small", "", figures.join(" · ")));
}

const step = release => make("li", release.state, make("time", "", time(release.at)), make("div", "",
  make("b", "", `version ${release.version} `), make("span", `state ${release.state}`, WENT[release.state] ?? plain(release.state)),
  make("small", "", ` by ${release.by}`), make("small", "block", release.why)));

/** `later`: the orders that were given since. */
const given = (order, later, steps, standing) => make("li", order.error ? "rejected" : "", make("time", "", order.done_at ? time(order.done_at) : "waits"),
  make("div", "", make("b", "", `${WORDS[order.kind] ?? order.kind} version ${order.version}`),
    make("small", "", ` by ${order.by}`), make("small", "block", order.error ? `${order.why}: refused: ${order.error}` : order.why),
    make("span", "actions", undo(order, later, steps, standing))));

/** Whether what an order to pin, unpin, hold or unhold a version brought about is so still, and its opposite changes that alone. */
function stands({ kind, version }, { pinned, held, live, data }) {
  if (kind === "pin") return pinned === version;
  if (kind === "unpin") return pinned === null && live === version;
  if (kind === "hold") return held.includes(version);
  return !held.includes(version) && ["candidate", "canary"].includes(data.find(each => each.version === version)?.state);
}

/** Whether a later order says the same or the contrary: then that one is taken back. */
const isFollowed = ({ kind, version }, later) => later.some(each => !each.error && [kind, OPPOSITE[kind]].includes(each.kind) && each.version === version);

/** What takes an order back, as long as nothing has followed it; null where it was refused or is not done yet. */
function undo(given, later, steps, standing) {
  if (given.error || !given.done_at) return null;
  if (OPPOSITE[given.kind]) return stands(given, standing) && !isFollowed(given, later) ? order(OPPOSITE[given.kind], given.version, "undo") : null;
  const served = steps.filter(each => each.state === "live");
  if (served.at(-1)?.version !== given.version || served.length < 2 || served.at(-2).servable === "lost") return null;
  return order("rollback", served.at(-2).version, `undo: back to version ${served.at(-2).version}`);
}

/** The newest steps of releases, the oldest of them first. */
export async function newest(count) {
  const status = await get("v1/status");
  const after = Math.max(0, (status.last_release ?? 0) - count);
  return (await get(`v1/releases?after=${after}&limit=${count}`)).data;
}

/** The ways back that are always there; `found`: the answer of `GET /v1/overview`. */
export function waysBack({ live, improvement: { first, lately }, soon: known }) {
  const best = lately.best?.version ?? first;
  const why = lately.best?.version ? "" : lately.turns < lately.needed
    ? `The best is the base, until ${number(lately.needed)} turns have a reward: ${number(lately.turns)} have.`
    : "The best is the base: of no later turns can it be said.";
  const way = ([version, what]) => {
    const found = known[version];
    if (version === live) return make("small", "", `${what}, version ${version}, serves`);
    if (found?.servable === "lost") return make("small", "", `${what}, version ${version}, ${soon(found)}`);
    const later = found?.servable === "rebuild" ? `, in about ${duration(found.about_s)}` : "";
    return order("rollback", version, `back to ${what}: version ${version}${later}`);
  };
  at("going-back").replaceChildren(...[[first, "the base"], [best, "the earlier best"]].map(way), make("small", "", why));
}

export { step };

export async function refresh() {
  const page = before === null ? "" : `&before=${before}`;
  const [standing, steps] = await Promise.all([get(`v1/policies?limit=${VERSIONS}${page}`), newest(STEPS)]);
  canary(standing.experiment);
  refill(at("versions"), standing.data.map(policy => row(policy, standing)), "No versions yet: the first comes of the model that is served.");
  next = standing.next;
  at("older-versions").hidden = next === null;
  at("newest-versions").hidden = before === null;
  refill(at("orders"), standing.orders.map((each, place) => given(each, standing.orders.slice(0, place), place ? [] : steps, standing)), "None: an order is what somebody pressed here, or gave by a command.");
  at("timeline").replaceChildren(...steps.reverse().map(step));
}

export function begin(again) {
  const show = from => () => {
    before = from();
    again();
  };
  at("older-versions").addEventListener("click", show(() => next));
  at("newest-versions").addEventListener("click", show(() => null));
}
