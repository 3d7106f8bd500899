// The story of one turn: what was asked, what was sampled and by whom, what users said of it, what it was worth and why.

import { at, button, duration, make, named, percent, plain, signed, state, time, tone } from "../dom.js";
import { get } from "../wire.js";
import { spans } from "../spans.js";

const SHADES = 8, SHOWN_TOKENS = 1500;
const story = at("story");
let cameFrom = null;
let asked = 0;  // an answer that comes after another turn was asked for, or none any more, is not shown
let leave = () => {};

/** `back` leads to where the story was opened. */
export function begin(back) {
  leave = back;
}

export function open(inferenceId) {
  location.hash = `turn/${encodeURIComponent(inferenceId)}`;
}

export function close() {
  asked += 1;
  if (story.hidden) return false;
  story.hidden = true;
  document.body.classList.remove("reading");
  cameFrom?.focus();
  return true;
}

export async function show(inferenceId) {
  if (!story.contains(document.activeElement)) cameFrom = document.activeElement;
  story.replaceChildren(make("p", "empty", "…"));
  story.hidden = false;
  document.body.classList.add("reading");
  const mine = ++asked;
  let shown;
  try {
    shown = parts(await get(`v1/turns/${encodeURIComponent(inferenceId)}`));
  } catch (error) {
    shown = [closer(), make("p", "problem", error.message)];
  }
  if (mine !== asked) return;
  story.replaceChildren(...shown);
  story.focus({ preventScroll: true });
}

const closer = () => button("×", "close", leave, "Close (Escape)");

function parts(turn) {
  const latest = turn.rewards.at(-1);
  return [
    closer(),
    make("h2", "", latest ? make("b", `value ${tone(latest.value)}`, signed(latest.value)) : state("no reward yet"),
      " ", latest ? latest.why : ""),
    facts(turn),
    make("h3", "", "Conversation"),
    ...turn.messages.map(message),
    make("h3", "", "Answer, as it was sampled"),
    tokens(turn),
    ...turn.tool_calls.map(call => make("pre", "message call", `${call.name} ${call.arguments}`)),
    ...latest ? spans(turn, latest) : [],
    make("h3", "", "What became of it"),
    timeline(turn),
    latest ? make("h3", "", "Reward, part by part") : null,
    latest ? components(turn.rewards) : null,
  ].filter(Boolean);
}

function link(session) {
  const found = make("a", "", session);
  found.href = `#session/${encodeURIComponent(session)}`;
  return found;
}

function facts(turn) {
  const versions = [...new Set(turn.policy_versions.map(span => span.version))];
  const arm = turn.arm === turn.arm_assigned ? turn.arm : `${turn.arm} (assigned: ${turn.arm_assigned})`;
  return make("dl", "facts",
    named("when", `${time(turn.received_at)} UTC`),
    named("workload", `${turn.workload}, ${turn.purpose}`),
    named("session", make("span", "", link(turn.session_id), `, turn ${turn.turn_index}`)),
    turn.client && named("client", `${plain(turn.client)}, by ${turn.protocol}`),
    turn.ignored.length ? named("ignored", turn.ignored.join(", ")) : null,
    named("version", versions.join(", then ")),
    named("arm", arm),
    named("tokens", `${turn.prompt_tokens} asked, ${turn.tokens.length} answered`),
    named("took", duration(turn.latency_ms / 1000) + (turn.ttft_ms === null ? "" : `, first token ${duration(turn.ttft_ms / 1000)}`)),
    named("ended", turn.finish_reason),
    named("trains", turn.trainable ? "yes" : `no: ${turn.untrainable_reasons.map(plain).join(", ")}`));
}

/** Content is a text, or parts some of which have a text; calls stand beside it. */
function message(said) {
  const content = Array.isArray(said.content)
    ? said.content.map(part => part.text ?? `[${part.type}]`).join("\n") : said.content ?? "";
  const calls = (said.tool_calls ?? []).map(call => `${call.function?.name} ${call.function?.arguments}`);
  return make("div", "said", make("small", "", said.role), make("pre", "message", [content, ...calls].filter(Boolean).join("\n")));
}

function tokens(turn) {
  const box = make("div", "tokens");
  const put = (from, to) => box.append(...turn.tokens.slice(from, to).flatMap((token, place) => tokenAt(turn, from + place)));
  put(0, SHOWN_TOKENS);
  if (turn.tokens.length <= SHOWN_TOKENS) return make("div", "", legend(), box);
  const rest = button(`the other ${turn.tokens.length - SHOWN_TOKENS} tokens`, "", () => {
    rest.remove();
    put(SHOWN_TOKENS);
  });
  return make("div", "", legend(), box, rest);
}

function tokenAt(turn, place) {
  const token = turn.tokens[place];
  const chance = token.logprob === null ? null : Math.exp(token.logprob);
  const shade = chance === null ? "unknown" : `p${Math.min(SHADES - 1, Math.floor(chance * SHADES))}`;
  const span = make("span", `token ${shade}`, token.text ?? `⟨${token.id}⟩`);
  span.title = `${JSON.stringify(token.text)} (${token.id})\n`
    + (chance === null ? "no log-probability" : `log-probability ${token.logprob.toFixed(4)}, probability ${percent(chance)}`)
    + `\nsampled by version ${token.version ?? "–"}`;
  const changes = place === 0 || turn.tokens[place - 1].version !== token.version;
  return changes ? [make("sup", "by", `v${token.version ?? "?"}`), span] : [span];
}

function legend() {
  const shades = Array.from({ length: SHADES }, (_, shade) => make("span", `token p${shade}`, "\u2002"));
  return make("small", "legend", "probability 0 ", ...shades, " 1; v: the version from there on");
}

function timeline(turn) {
  const since = stamp => `+${duration((Date.parse(stamp) - Date.parse(turn.received_at)) / 1000)}`;
  const events = [
    ...turn.outcomes.map(outcome => [outcome.received_at, "outcome", outcomeLine(outcome, turn)]),
    ...turn.rewards.map(reward => [reward.decided_at, tone(reward.value), rewardLine(reward)]),
  ].sort(([one], [other]) => Date.parse(one) - Date.parse(other));
  const steps = [[turn.received_at, "asked", ["asked"]], ...events];
  return make("ol", "timeline", ...steps.map(([stamp, kind, line]) =>
    make("li", kind, make("time", "", kind === "asked" ? time(stamp) : since(stamp)), make("div", "", ...line))));
}

function outcomeLine(outcome, turn) {
  const value = outcome.withdrawn ? "withdrawn" : String(outcome.value);
  const about = outcome.inference_id === turn.inference_id ? "" : ", of the whole session";
  return [
    make("b", "", outcome.name), " ", make("span", "quoted", value),
    make("small", "", ` by ${outcome.source}${about}${outcome.supersedes ? ", in place of what was said before" : ""}`),
    outcome.evidence ? make("small", "block quoted", outcome.evidence) : null,
  ];
}

const rewardLine = reward => [
  make("b", `value ${tone(reward.value)}`, signed(reward.value)), " ", reward.why,
  make("small", "", ` revision ${reward.revision}, ${reward.final ? "final" : "may change"}, spec ${reward.spec.slice(0, 12)}`),
];

function components(revisions) {
  const names = [...new Set(revisions.flatMap(reward => Object.keys(reward.components)))].sort();
  const cells = read => revisions.map(reward => {
    const value = read(reward);
    return make("td", value === undefined ? "" : tone(value), value === undefined ? "–" : signed(value));
  });
  return make("div", "scroll", make("table", "",
    make("thead", "", make("tr", "", make("th", "", "part"), ...revisions.map(each => make("th", "", `revision ${each.revision}`)))),
    make("tbody", "", ...names.map(name => make("tr", "", make("td", "", name), ...cells(reward => reward.components[name]))),
      make("tr", "total", make("td", "", "reward"), ...cells(reward => reward.value)))));
}
