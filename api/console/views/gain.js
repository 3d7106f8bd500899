// Whether the model is better than the one it began as: the first thing that is said on the page.

import { at, make, number, signed } from "../dom.js";
import { get } from "../wire.js";

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
  if (base >= baseNeeded) return "one session alone spoke";
  const served = `${number(base)} turns of ${number(baseNeeded)} by ${than}`;
  return how === "holdback" ? served : `${served}; a holdback would bring more`;
}

function basis(found) {
  if (!found.versions || found.difference === null) return "";
  const [first, last] = found.versions;
  const ours = `${number(found.turns)} turns of ${first === last ? `version ${first}` : `versions ${first} to ${last}`}`;
  const theirs = found.how === "holdback" ? "of users held back on it, at the same time" : "when it served; users may have changed since";
  return `mean reward, 95 % interval: ${ours} against ${number(found.base_turns)} ${theirs}`;
}

export async function refresh() {
  const found = await get("v1/improvement");
  const [words, kind] = answer(found);
  at("gain").replaceChildren(make("b", kind, words), make("small", "", basis(found)));
}
