// Cases that were mined from sessions: what each is made of, and the operator's decision.

import { at, button, make, named, plain, refill, state, time } from "../dom.js";
import { ask } from "../order.js";
import { get } from "../wire.js";

const FIELDS = {  // of a case: what it is called, and how many lines it has
  name: ["Name", 1], kind: ["Kind: answer or task", 1], group: ["Group", 1], messages: ["Messages (an answer's), as JSON", 6],
  instruction: ["Instruction (a task's)", 3], answer: ["Answer that the user kept", 8],
  checker: ["Checker (an answer's), as JSON", 3], tests: ["Tests (a task's): a command", 2],
  dockerfile: ["Dockerfile (a task's)", 3], reuse: ["Rules of reuse", 2],
};
let edited = null;  // the draft whose case is being edited

const path = draft => `v1/suite/drafts/${encodeURIComponent(draft.draft_id)}`;
const asked = draft => draft.case.kind === "task" ? draft.case.instruction
  : draft.case.messages.map(message => `${message.role}: ${message.content}`).join("\n");

function decide(draft, verdict, meaning) {
  return button(verdict, verdict, () => ask({
    title: `${verdict} ${draft.case.name}`, meaning, path: path(draft), word: "note", needed: false, body: { verdict },
  }));
}

function row(draft) {
  const { case: its } = draft;
  const decided = draft.decided_at
    && `${draft.state} ${time(draft.decided_at)} by ${draft.decided_by}${draft.note ? `: ${draft.note}` : ""}`;
  const facts = Object.entries(draft.repository).map(([name, value]) => named(plain(name), value));
  const session = make("a", "", `session ${draft.session_id}`);
  session.href = `#session/${encodeURIComponent(draft.session_id)}`;
  const line = make("div", "row draft",
    make("b", "", its.name), make("span", "", state(draft.state), state(its.kind)),
    make("pre", "message block", asked(draft)),
    make("pre", "message block", its.answer),
    make("p", "", its.kind === "task" ? `judged by ${its.tests}` : `judged by ${its.checker}`),
    facts.length ? make("dl", "facts", ...facts) : null,
    make("small", "meta", `${draft.namespace} · ${draft.workload} · ${draft.why} · `, session, ` · ${its.reuse}`,
      decided ? ` · ${decided}` : "", draft.file ? ` · ${draft.file}` : ""),
    make("span", "actions", ...draft.state === "waiting" ? [
      decide(draft, "accept", "It becomes a case of the suite: versions are asked it, and its answer is kept out of training."),
      button("edit", "edit", () => edit(draft)),
      decide(draft, "refuse", "It never becomes a case."),
    ] : []));
  line.tabIndex = -1;
  return make("li", "", line);
}

function edit(draft) {
  edited = draft;
  at("draft-problem").hidden = true;
  at("draft-fields").replaceChildren(...Object.entries(FIELDS).map(([name, [label, lines]]) => {
    const value = draft.case[name];
    const box = make("textarea", "", name === "messages" ? JSON.stringify(value, null, 1) : value);
    box.name = name;
    box.rows = lines;
    box.spellcheck = false;
    return make("label", "", label, box);
  }));
  at("draft-editor").hidden = false;
  at("draft-list").hidden = true;
  at("draft-fields").querySelector("textarea").focus();
}

function close() {
  edited = null;
  at("draft-editor").hidden = true;
  at("draft-list").hidden = false;
}

function save(event) {
  event.preventDefault();
  const boxes = [...at("draft-fields").querySelectorAll("textarea")];
  const its = Object.fromEntries(boxes.map(box => [box.name, box.value]));
  try {
    its.messages = JSON.parse(its.messages);
  } catch (error) {
    at("draft-problem").textContent = `Messages: ${error.message}`;
    at("draft-problem").hidden = false;
    return;
  }
  ask({
    title: `edit ${edited.case.name}`, meaning: "The draft is changed, and still waits for a decision.",
    path: path(edited), word: "note", needed: false, done: close, body: { verdict: "edit", case: its },
  });
}

export async function refresh() {
  const { drafts } = await get("v1/suite/drafts");
  const waiting = drafts.filter(draft => draft.state === "waiting").length;
  at("drafts-counted").textContent = drafts.length ? `${waiting} of ${drafts.length} wait for a decision` : "";
  refill(at("draft-list"), drafts.map(row), "no drafts; `onward suite mine` makes them of sessions");
}

export function begin() {
  at("draft-form").addEventListener("submit", save);
  at("draft-not").addEventListener("click", close);
}
