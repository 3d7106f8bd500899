// Turns that are excluded from learning: what an order would change, giving one, how far it is obeyed, and the way back.

import { at, button, duration, make, number, plain, refill, state, time } from "./dom.js";
import { ask } from "./order.js";
import { get, post } from "./wire.js";

const NUMBERS = ["answered_by", "learned_by"];
const MOST_NAMED = 3;

/** The names in a list with commas; one that holds a comma itself stands in double quotes: `a, "b, c"`. */
function listed(text) {
  const parts = text.match(/\s*(?:"[^"]*"|[^,])+/g) ?? [];
  return parts.map(part => part.trim()).map(part => /^"[^"]*"$/.test(part) ? part.slice(1, -1) : part).filter(Boolean);
}

/** What the form says, in the words of the API. */
function chosen() {
  const kind = at("exclude-kind").value;
  const names = listed(at("exclude-names").value);
  const body = names.length ? { [kind]: NUMBERS.includes(kind) ? names.map(Number) : names } : {};
  for (const word of ["namespace", "since", "until"]) {
    const text = at(`exclude-${word}`).value.trim();
    if (text) body[word] = text;
  }
  return body;
}

function exclude(event) {
  event.preventDefault();
  const body = chosen();
  let backTo = null;
  ask({
    title: "Exclude turns from learning",
    meaning: "None of them trains any more, early or late, and what was learned from them is unlearned.",
    path: "v1/exclusions",
    word: "why",
    needed: true,
    body,
    blind: false,  // what is meant by a name, and of which namespace, the preview says
    look: key => post("v1/exclusions/preview", body, key),
    foresee: found => {
      backTo = found.roll_back_to;
      body.namespace = found.namespace;  // what was looked at is what is ordered, whatever key is entered after that
      return [`In namespace ${found.namespace}:`, ...found.says].map(sentence => make("p", "", sentence));
    },
    done: () => {
      at("exclude-form").reset();
      if (backTo) offer(backTo);
    },
  });
}

/** Asks whether users shall be served the version before meanwhile. */
function offer(version) {
  ask({
    title: `roll back to version ${version}`,
    meaning: "The order is given. This version served before and learned from none of these turns: serve it until then?",
    path: `v1/policies/${version}/rollback`,
    word: "why",
    needed: true,
  });
}

function include(order) {
  return button("include again", "include", () => ask({
    title: `Include again what order ${order.exclusion_id} excluded`,
    meaning: "What is rewarded from now on trains again. What was unlearned is not learned anew.",
    path: `v1/exclusions/${order.exclusion_id}/lift`,
    word: "why",
    needed: true,
  }));
}

function words(selection) {
  const lists = Object.entries(selection).filter(([, values]) => Array.isArray(values)).map(([name, values]) => {
    const more = (selection[`${name}_selected`] ?? values.length) - MOST_NAMED;
    return `${plain(name)} ${values.slice(0, MOST_NAMED).join(", ")}${more > 0 ? ` and ${number(more)} more` : ""}`;
  });
  const bounds = ["since", "until"].filter(name => selection[name]).map(name => `${name} ${time(selection[name])}`);
  return [...lists, ...bounds].join(" · ");
}

/** How far an order is obeyed: in words, and as a bar while it goes on. */
function progress(order) {
  const told = order.relearning;
  if (!told) return ["No learner has seen it yet."];
  const unknown = told.unknown ? ` ${number(told.unknown)} turns are gone from the store, and may have been meant.` : "";
  if (told.note) return [told.note, unknown];
  const { updates = 0, made_again: done = 0, emptied = 0, lost = 0, per_s: rate, left_s: left } = told;
  const gone = (emptied ? `, ${number(emptied)} held nothing else` : "") + (lost ? `, ${number(lost)} could not be made again` : "");
  if (told.ended_at) return [`Version ${told.version}, upon version ${told.start}: ${number(done)} updates made again${gone}.`, unknown];
  const bar = make("progress");
  bar.max = updates;
  bar.value = done + emptied + lost;
  const pace = rate ? `, ${rate.toFixed(1)} a second, ${duration(left)} left` : "";
  return [bar, ` ${number(done + emptied + lost)} of ${number(updates)} updates made again${pace}`];
}

function row(order) {
  const line = make("div", "row exclusion",
    make("b", "", `order ${order.exclusion_id}`), make("span", "", state(order.state)),
    make("p", "", words(order.selection)),
    make("p", "", ...progress(order)),
    make("small", "meta", [
      order.selection.namespace,
      `${time(order.ordered_at)} by ${order.by}: ${order.why}`,
      order.lifted_at && `lifted ${time(order.lifted_at)} by ${order.lifted_by}: ${order.lifted_why}`,
    ].filter(Boolean).join(" · ")),
    make("span", "actions", order.lifted_at ? null : include(order)));
  line.tabIndex = -1;
  return make("li", "", line);
}

/** Puts the turns that an alarm is about into the form. */
export function choose(alarm) {
  at("exclude-kind").value = "workloads";
  const { workload } = alarm;
  at("exclude-names").value = workload?.includes(",") ? `"${workload}"` : workload ?? "";
  at("exclude-namespace").value = alarm.namespace;
  at("exclude-since").value = alarm.window_start;
  at("exclude-until").value = alarm.window_end;
  at("exclude-names").focus();
}

export async function refresh() {
  const { data } = await get("v1/exclusions");
  refill(at("exclusion-list"), data.map(row), "nothing is excluded");
}

export function begin() {
  at("exclude-form").addEventListener("submit", exclude);
}
