// Whether the model is better than the one it began as, and as good as it ever was: the first thing on every page; and
// what holds releases, with its undo.

import { at, make, number, signed, state, time } from "../dom.js";
import { get } from "../wire.js";
import { isWrong, show } from "./overview.js";
import { freezing, order, waysBack } from "./releases.js";

const STOPPED = { stuck: "Releases are stuck", held: "Releases are held", frozen: "Releases are frozen" };
const CONTRADICTED = ["worse", "attacked", ...Object.keys(STOPPED)];  // states beside which what is no worse is said in small

const between = ({ low, high }) => ` (${signed(low)} to ${signed(high)})`;

/** [the answer, how it stands]. */
function answer(found) {
  const than = `version ${found.first}`;
  switch (found.verdict) {
    case "first": return [`Version ${found.first} serves, as it was given: there is nothing to compare yet`, ""];
    case "better": return [`Better than ${than} by ${signed(found.difference)}${between(found)}`, "good"];
    case "worse": return [`Worse than ${than}: ${signed(found.difference)}${between(found)}`, "bad"];
    case "no difference": return [`No difference from ${than} is shown: ${signed(found.difference)}${between(found)}`, "even"];
  }
  return [`Cannot say yet whether it is better than ${than}: ${lacking(found, than)}`, ""];
}

function lacking({ turns, needed, base_turns: base, base_needed: baseNeeded, how }, than) {
  if (turns < needed) return `${number(turns)} turns of ${number(needed)}`;
  if (base >= baseNeeded) return "too few users or sessions spoke of the same workloads";
  const served = `${number(base)} turns of ${number(baseNeeded)} by ${than}`;
  return how === "holdback" ? served : `${served}; a holdback would bring more`;
}

/** The same of the newest turns, against the best of those before them. */
function lately(found) {
  if (found.verdict === "too early" && found.turns >= found.needed) return ["Its earlier best: too few users or sessions spoke of the same workloads before", ""];
  if (found.verdict === "too early") return [`Its earlier best: known after ${number(found.needed)} rewarded turns, ${number(found.turns)} are there`, ""];
  const best = "its earlier best";
  const by = `${signed(found.difference)}${between(found)}`;
  if (found.verdict === "worse") return [`Worse than ${best}: ${by}`, "bad"];
  return [found.verdict === "better" ? `Better than ${best} by ${by}` : `As good as ${best}: ${by}`, ""];
}

/** What that best was. */
function bestOf({ best }) {
  if (!best) return "";
  const whose = best.version ? `, most of them answered by version ${best.version}` : "";
  return `its earlier best: the ${number(best.turns)} turns up to ${time(best.to)} UTC${whose}`;
}

function basis(found) {
  if (!found.versions || found.difference === null) return "";
  const [first, last] = found.versions;
  const ours = `${number(found.turns)} turns of ${first === last ? `version ${first}` : `versions ${first} to ${last}`}`;
  const base = `version ${found.first}`;
  const theirs = found.how === "holdback" ? `of users held back on ${base} at the same time`
    : `of ${base} from when it served; users may have changed since`;
  return `mean reward with its 95 % interval: ${ours} against ${number(found.base_turns)} turns ${theirs}`;
}

/** Beside the live version: what is frozen or held, each with its undo; else the way to freeze. */
function switches({ pinned, held, held_by_alarm: isHeld }) {
  const alarm = make("a", "", "an alarm holds releases");
  alarm.href = "#alarms";
  at("switches").replaceChildren(
    pinned === null ? freezing() : make("span", "", state("frozen"), order("unpin", pinned, "unfreeze")),
    isHeld ? make("span", "", state("held"), alarm) : "",
    ...held.map(version => make("span", "", state("held"), `version ${version} `, order("unhold", version, "let it go on"))));
}

export async function refresh() {
  const found = await get("v1/overview");
  const [since, recent] = [answer(found.improvement), lately(found.improvement.lately)];
  // Nothing is good while it falls, or somebody attacks: that is said first, and in no other colour.
  if ((recent[1] === "bad" || isWrong(found)) && since[1] === "good") since[1] = "";
  const [first, second] = recent[1] ? [recent, since] : [since, recent];
  const says = ([words, kind]) => make(CONTRADICTED.includes(found.state) && kind !== "bad" ? "span" : "b", kind, words);
  const best = bestOf(found.improvement.lately);
  const stopped = STOPPED[found.state] ? [make("b", "even", STOPPED[found.state])] : [];
  at("gain").replaceChildren(...stopped, says(first), says(second), ...[basis(found.improvement), best].filter(Boolean).map(each => make("small", "", each)));
  switches(found);
  waysBack(found);
  show(found, recent[0], best);
}
