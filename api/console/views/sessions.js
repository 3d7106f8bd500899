// Sessions, the newest first, and those that fit a search; the tree of one session's turns.

import { at, button, make, number, plain, refill, signed, time, tone } from "../dom.js";
import { get } from "../wire.js";
import { open } from "./story.js";

const TYPED_MS = 250, MOST_SAID = 60;
const search = at("session-search"), list = at("session-list"), tree = at("tree");
let next = null;  // where the next page begins
let paged = false;  // older pages stand below the first
let pending = 0;
let listed = 0, opened = 0;  // an answer that comes after something else was asked for is not shown
let report = () => {};

const YES = { yes: "true", no: "false" };
const VALUES = {
  session: text => ({ session: text }),
  user: text => ({ user: text }),
  client: text => ({ client: text }),
  workload: text => ({ workload: text }),
  since: text => ({ since: text }),
  until: text => ({ until: text }),
  feedback: text => ({ feedback: YES[text] ?? text }),
  reward: text => ({ [text[0] === "<" ? "most_reward" : "least_reward"]: text.replace(/^[<>]=?/, "") }),
};

/** The query that the words of a search make: `name:value`, or the beginning of a session's id. */
export function query(words) {
  const parts = words.split(/\s+/).filter(Boolean).map(word => {
    const [, name, value] = word.match(/^(\w+):(.+)$/) ?? [];
    return name in VALUES ? VALUES[name](value) : { session: word };
  });
  return new URLSearchParams(Object.assign({}, ...parts));
}

const several = (count, one) => `${number(count)} ${count === 1 ? one : `${one}s`}`;

function row(session) {
  const { reward, lowest, highest } = session;
  const spread = session.rewarded > 1 ? ` · from ${signed(lowest)} to ${signed(highest)}` : "";
  const line = make("button", "row reward",
    make("b", `value ${reward === null ? "even" : tone(reward)}`, reward === null ? "–" : signed(reward)),
    make("span", "", session.session_id),
    make("small", "meta", [
      time(session.last_at), several(session.turns, "turn"), ...session.workloads,
      [session.clients.map(plain).join(", "), session.protocols.length && `by ${session.protocols.join(", ")}`].filter(Boolean).join(" "),
      session.users.map(user => `user ${user.slice(0, 8)}`).join(", "),
      session.has_feedback ? "feedback" : "no feedback", session.trainable < session.turns && `${number(session.trainable)} train`,
    ].filter(Boolean).join(" · ") + spread));
  line.type = "button";
  line.addEventListener("click", () => { location.hash = `session/${encodeURIComponent(session.session_id)}`; });
  return make("li", "", line);
}

function tell(page) {
  next = page.next;
  at("older-sessions").hidden = !next;
  const back = page.looked_back_to && next ? `, looked back to ${time(page.looked_back_to)}` : "";
  at("sessions-shown").textContent = several(list.querySelectorAll(".row").length, "session") + back
    + (page.complete ? "" : "; some are too long, or too many, to be shown whole");
}

/** A page, or null where another was asked for meanwhile. */
async function page(asked) {
  const mine = ++listed;
  try {
    const found = await get(`v1/sessions?${asked}`);
    return mine === listed ? found : null;
  } catch (error) {
    if (mine === listed) throw error;
    return null;
  }
}

async function first() {
  const found = await page(query(search.value));
  if (!found) return false;
  paged = false;
  refill(list, found.data.map(row), found.next ? "None so far back: older ones may match." : search.value ? "No session matches: empty the search to see them all." : "No sessions yet: one begins with a turn.");
  tell(found);
  return true;
}

/** What is wrong with the newest list that was asked for, by whomever, is said until another one comes. */
const attempt = work => work().then(isNewest => isNewest && report(""), error => report(error.message));

/** Shows what these words find. */
export function seek(words) {
  search.value = words;
  attempt(first);
}

/** As time passes; not while somebody reads on in older ones, or in one. */
export async function refresh() {
  if (!list.children.length || (!paged && tree.hidden)) await attempt(first);
}

async function older() {
  const asked = query(search.value);
  asked.set("before", next);
  const was = paged;
  paged = true;  // from now on: a refresh meanwhile would take this page's place
  let found = null;
  try {
    found = await page(asked);
  } catch (error) {
    paged = was;
    throw error;
  }
  if (!found) return false;
  list.querySelector(".empty")?.remove();
  list.append(...found.data.map(row));
  tell(found);
  return true;
}

// ---------------------------------------------------------------------------------------------- one session

export function close() {
  opened += 1;
  delete tree.dataset.session;  // what is opened again may have grown
  tree.hidden = true;
  at("session-page").hidden = false;
}

/** Under another key others are allowed: nothing of what the last one showed stays, or comes still. */
export function forget() {
  listed += 1;
  opened += 1;
  paged = false;
  delete tree.dataset.session;
  for (const each of [tree, list, at("sessions-shown")]) each.replaceChildren();
  at("older-sessions").hidden = true;
}

export async function show(id) {
  at("session-page").hidden = true;
  tree.hidden = false;
  if (tree.dataset.session === id && tree.querySelector(".row")) return;
  tree.dataset.session = id;
  const back = button("all sessions", "", () => { location.hash = "sessions"; }, "Back (Escape)");
  tree.replaceChildren(back, make("p", "empty", "…"));
  const mine = ++opened;
  let shown;
  try {
    const session = await get(`v1/sessions/${encodeURIComponent(id)}`);
    const words = session.outcomes.map(said).join(", ");
    shown = [make("h2", "", id), words ? make("p", "", `Of the whole session: ${words}`) : "",
      make("ol", "rows tree", ...branches(session.turns).map(([turn, depth]) => branch(turn, depth)))];
  } catch (error) {
    shown = [make("p", "problem", error.message)];
  }
  if (mine !== opened) return;
  tree.replaceChildren(back, ...shown);
  (tree.querySelector(".row") ?? tree).focus({ preventScroll: true });
}

const said = ({ name, value, withdrawn }) => `${name} ${withdrawn ? "withdrawn" : cut(String(value))}`;
const cut = text => text.length > MOST_SAID ? `${text.slice(0, MOST_SAID)}…` : text;

/** The turns as a tree: [turn, depth], each after its parent; a turn goes deeper only where a session forks. */
function branches(turns) {
  const known = new Set(turns.map(turn => turn.inference_id));
  const children = Map.groupBy(turns, turn => known.has(turn.parent_id) ? turn.parent_id : null);
  const found = [], rest = (children.get(null) ?? []).map(turn => [turn, 0]).reverse();
  while (rest.length) {
    const [turn, depth] = rest.pop();
    found.push([turn, depth]);
    const following = children.get(turn.inference_id) ?? [];
    rest.push(...following.map(child => [child, depth + (following.length > 1 ? 1 : 0)]).reverse());
  }
  return found;
}

function branch(turn, depth) {
  const reward = turn.rewards.at(-1);
  const versions = [...new Set(turn.policy_versions.map(span => span.version))].join(", ");
  const words = turn.text || turn.tool_calls.map(call => `${call.name} ${call.arguments}`).join(" ") || (turn.stored ? "–" : "not stored");
  const line = make("button", "row reward",
    make("b", `value ${reward ? tone(reward.value) : "even"}`, reward ? signed(reward.value) : "–"),
    make("span", "cut", words),
    make("small", "meta", [
      time(turn.received_at), turn.purpose, turn.client && `${plain(turn.client)} by ${turn.protocol}`, versions && `version ${versions}`,
      several(turn.completion_tokens, "token"), turn.trainable ? null : `does not train: ${turn.untrainable_reasons.map(plain).join(", ")}`,
      ...turn.outcomes.map(said),
    ].filter(Boolean).join(" · ")));
  line.type = "button";
  line.addEventListener("click", () => open(turn.inference_id));
  return make("li", `depth${Math.min(depth, 6)}`, line);
}

export function begin(tellProblem) {
  report = tellProblem;
  search.addEventListener("input", () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      if (location.hash.startsWith("#session/")) location.hash = "sessions";
      attempt(first);
    }, TYPED_MS);
  });
  at("older-sessions").addEventListener("click", () => attempt(older));
}
