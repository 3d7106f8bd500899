// Drafts of eval cases: what waits for a person, one of them whole, and what was decided, with the way back.

import { at, button, make, named, number, plain, refill, signed, state, time, tone } from "../dom.js";
import { ordering } from "../order.js";
import { get } from "../wire.js";

const PAGE = 100, MOST = 1000;
const panel = at("draft");
let limit = PAGE;
let opened = 0;  // an answer that comes after another draft was asked for is not shown

const hashOf = draft => `draft/${encodeURIComponent(JSON.stringify([draft.suite, draft.name]))}`;
const said = ({ outcomes, edited }) => [...outcomes, edited && "edited by its user"].filter(Boolean).join(", ") || "nothing was said of it";

function openButton(draft, kind, ...children) {
  const line = button("", `row ${kind}`, () => { location.hash = hashOf(draft); });
  line.replaceChildren(...children);
  return line;
}

function waiting(draft) {
  return make("li", "", openButton(draft, "reward",
    make("b", `value ${tone(draft.reward)}`, signed(draft.reward)),
    make("span", "cut", draft.asks || "–"),
    make("small", "meta", [draft.name, draft.suite, time(draft.received_at), said(draft)].join(" · "))));
}

function decided(draft) {
  const line = make("div", "row alarm",
    make("b", "", draft.name), make("span", "", state(draft.state)),
    make("p", "cut", draft.asks || "–"), make("small", "meta", `${draft.suite} · ${decision(draft)}`),
    make("span", "actions", button("show", "", () => { location.hash = hashOf(draft); }), undo(draft)));
  line.tabIndex = -1;
  return make("li", "", line);
}

function decision({ state: kind, decision: { by, at: when, why, checker, group } }) {
  const who = by ? `${plain(kind)} by ${by} ${time(when)}` : `${plain(kind)}; nobody wrote down by whom`;
  return kind === "rejected" ? `${who}: ${why}` : `${who}: ${checker ?? "a task"}${group ? `, group ${group}` : ""}`;
}

// ---------------------------------------------------------------------------------------------- orders

const MEANING = {
  accept: "It becomes a case of the suite. A checker that finds the answer above wrong is refused.",
  task: "It becomes a task of the suite, whose tests are the chosen commands. Refused if the session may no longer be used.",
  reject: "It is put aside and not drafted again; its session may be learned from.",
};
const BACK = {
  accepted: "The case is a draft again, and no version is asked it.",
  rejected: "It waits again, and its answer is kept out of training again. Refused once a version has learned from it.",
};

/** An order about a draft as it was looked at; what came of it is shown in its place. */
const wish = (kind, draft, meaning, undo, rest) => ({
  title: `${kind} ${draft.name}`,
  meaning,
  path: `v1/drafts/${encodeURIComponent(draft.name)}/${kind}`,
  scope: "admin",
  foresee: null,
  usual: null,
  word: null,
  ...rest,
  more: { suite: draft.suite, seen: draft.seen, ...rest.more },
  undo: async () => undo,
  done: found => {
    if (panel.dataset.draft === hashOf(found)) fill(found);
  },
});

const accepting = (draft, checker, group) => wish("accept", draft, MEANING.accept, takingBack, { more: { checker, ...group && { group } } });
const acceptingTask = (draft, given) => wish("accept", draft, MEANING.task, takingBack, { more: given });
const rejecting = (draft, usual) => wish("reject", draft, MEANING.reject, takingBack, { word: "why", needed: true, usual });
const takingBack = draft => wish("undo", draft, BACK[draft.state], found => anew(found, draft), {});

/** What was decided, once more. */
const anew = (draft, { state: kind, work, decision: { checker, group, why } }) => {
  if (kind === "rejected") return rejecting(draft, why);
  return work ? acceptingTask(draft, group && { group }) : accepting(draft, checker, group);
};

const undo = draft => ordering("undo", "undo", takingBack(draft));

function form(draft) {
  const checker = make("textarea", "");
  checker.id = "checker";
  checker.rows = 3;
  checker.spellcheck = false;
  checker.placeholder = '{ kind = "contains", all = ["sum("] }';
  const group = make("input", "");
  group.id = "draft-group";
  group.placeholder = "all";
  return make("div", "decide",
    make("label", "", "What tells a right answer, as a case has it: exact, contains, regex or json_schema", checker),
    make("label", "", "Group", group),
    make("p", "bar",
      ordering("accept", "promote", () => accepting(draft, checker.value, group.value.trim())),
      ordering("reject", "rollback", rejecting(draft, null))));
}

/** The form for an agent's work: what is asked, and which of its commands are tests. */
function taskForm(draft, boxes) {
  const asked = make("textarea", "");
  asked.id = "instruction";
  asked.rows = 6;
  asked.value = draft.messages.map(({ content }) => content).join("\n\n");
  const said = asked.value;
  const given = () => ({
    tests: boxes.filter(({ checked }) => checked).map(({ value }) => Number(value)),
    ...asked.value !== said && { instruction: asked.value },
  });
  return make("div", "decide",
    make("label", "", "What is asked", asked),
    make("p", "bar",
      ordering("accept", "promote", () => acceptingTask(draft, given())),
      ordering("reject", "rollback", rejecting(draft, null))));
}

const DOUBTS = {
  no_result: "its result is not in the log", no_exit_status: "its result states no exit code", network: "it needs a network",
  destructive: "it may destroy something", of_its_machine: "it depends on the machine", hides_its_end: "the shell hides how it ended",
  no_test: "it tests nothing", failed: "it failed", changed_since: "files were changed since", tests_changed: "the session changed tests",
  of_a_helper: "a helper ran it", secret: "it holds a secret",
};

function commandLine({ command, doubt, failed_before: failed, chosen }, place, isDecided) {
  const box = make("input", "");
  box.type = "checkbox";
  box.value = String(place + 1);
  box.checked = chosen && !doubt;
  box.disabled = isDecided || Boolean(doubt);
  const more = doubt ? ` – no test: ${DOUBTS[doubt] ?? doubt}` : failed ? " – it failed at first, then succeeded" : " – it succeeded";
  return { box, line: make("li", "", make("label", "", box, " ", make("code", "", command), more)) };
}

/** An agent's work: its changes, its commands, and the state from which it began. */
function workOf({ changes, commands, unseen, image, state: began }, boxes, isDecided) {
  const change = ({ kind, path, old, new: text, by_helper: helper }) => make("div", "said",
    make("small", "", `${kind === "write" ? "writes" : "changes"} ${path}${helper ? ", by a helper of the agent" : ""}`),
    kind === "write" ? "" : make("pre", "message", old), make("pre", "message solution", text));
  const lines = commands.map((command, place) => commandLine(command, place, isDecided));
  boxes.push(...lines.map(({ box }) => box));
  return [
    make("h3", "", "Changes"), ...changes.map(change),
    unseen.length ? make("p", "", `Files may also have been changed by: ${unseen.join("; ")}.`) : "",
    make("h3", "", "Tests"), make("ul", "", ...lines.map(({ line }) => line)),
    make("h3", "", "State at the beginning"),
    make("p", "", began ? `The environment of the task ${began}.`
      : `Unknown: ${image ? `no given task has the image ${image}` : "its turns name no image"}. The draft cannot be accepted without it.`),
  ];
}

// ---------------------------------------------------------------------------------------------- one draft

function link(text, hash) {
  const found = make("a", "", text);
  found.href = `#${hash}`;
  return found;
}

const quoted = ({ role, content }) => make("div", "said", make("small", "", role), make("pre", "message", content));

function fill(draft) {
  const tests = draft.outcomes.filter(outcome => outcome.startsWith("tests"));
  const boxes = [];
  panel.replaceChildren(
    button("all drafts", "", () => { location.hash = "drafts"; }, "Back (Escape)"),
    make("h2", "", draft.name, " ", state(draft.state)),
    draft.decision ? make("p", "bar", make("span", "", decision(draft)), undo(draft)) : "",
    make("dl", "facts",
      named("suite", draft.suite),
      named("reward", `${signed(draft.reward)} by ${draft.reward_spec.slice(0, 12)}`),
      named("what was said", said(draft)),
      named("answered by", `version ${draft.versions.join(", ")}`),
      named("asked", time(draft.received_at)),
      named("session", link(draft.session, `session/${encodeURIComponent(draft.session)}`)),
      named("turn", link(draft.turn, `turn/${encodeURIComponent(draft.turn)}`))),
    make("h3", "", "Request, with what its client quoted of the repository"), ...draft.messages.map(quoted),
    ...draft.work ? workOf(draft.work, boxes, Boolean(draft.decision)) : [
      make("h3", "", draft.edited ? "Answer, as its user changed it" : "Answer"), make("pre", "message solution", draft.solution),
      make("h3", "", "Tests"),
      make("p", "", `${tests.length ? `The log says ${tests.join(", ")}, and not which tests these were.` : "The log says of no tests."} The checker is yours to give.`),
    ],
    make("h3", "", "Rules of reuse"),
    make("dl", "facts",
      named("only for", draft.only_for), named("namespace", draft.namespace),
      named("let by key", draft.key ?? "none"), named("user", draft.user?.slice(0, 12) ?? "nobody named")),
    draft.decision ? "" : draft.work ? taskForm(draft, boxes) : form(draft));
}

export async function show(text) {
  at("draft-lists").hidden = true;
  panel.hidden = false;
  if (panel.dataset.draft === `draft/${encodeURIComponent(text)}`) return;
  panel.dataset.draft = `draft/${encodeURIComponent(text)}`;
  panel.replaceChildren(make("p", "empty", "…"));
  const mine = ++opened;
  try {
    const [suite, name] = JSON.parse(text);
    const found = await get(`v1/drafts/${encodeURIComponent(name)}?${new URLSearchParams({ suite })}`);
    if (mine === opened) fill(found);
  } catch (error) {
    if (mine === opened) panel.replaceChildren(make("p", "problem", error.message));
  }
  if (mine === opened) panel.focus({ preventScroll: true });
}

/** Says whether one was open. */
export function close() {
  if (panel.hidden) return false;
  opened += 1;
  delete panel.dataset.draft;
  panel.hidden = true;
  at("draft-lists").hidden = false;
  return true;
}

/** Under another key others are allowed: nothing of what the last one showed stays. */
export function forget() {
  opened += 1;
  delete panel.dataset.draft;
  for (const each of [panel, at("draft-list"), at("decided-list")]) each.replaceChildren();
}

export async function refresh() {
  if (!panel.hidden) return;  // somebody reads, or writes a checker
  const found = await get(`v1/drafts?limit=${limit}`);
  refill(at("draft-list"), found.waiting.map(waiting), found.suites.length
    ? "No draft waits: `onward suite mine` makes them of sessions."
    : "No suite is kept out of training: name one in learner.admission.keep_out.");
  refill(at("decided-list"), found.decided.map(decided), "Nobody has decided on a draft yet.");
  const { counts } = found;
  at("drafts-counted").textContent = `${number(counts.waiting)} wait, ${number(counts.decided)} are decided`
    + (found.unlisted ? `; ${number(found.unlisted)} files more are not looked at` : "");
  at("more-drafts").hidden = limit >= Math.min(MOST, Math.max(counts.waiting, counts.decided));
  at("draft-problems").textContent = found.problems.join("; ");
  at("draft-problems").hidden = !found.problems.length;
}

export function begin(again) {
  at("more-drafts").addEventListener("click", () => {
    limit = Math.min(MOST, limit + PAGE);
    again();
  });
}
