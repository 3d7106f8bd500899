// Gives an order at one press, and shows its undo. Asks only where it lacks a key, or a reason that has to be: the admin's key is kept by nothing but this page's memory.

import { at, button, make } from "./dom.js";
import { get, isOpen, keyForReading, post } from "./wire.js";

const FORBIDDEN = [401, 403], INCLUDED = { admin: ["admin", "operate"], operate: ["operate"] };
const dialog = at("order"), bar = at("done");
const keys = new Map();  // scope: a key that an order was given with
let pending = null;
let isUnderWay = false;

/** A button that gives an order. `wanted`, or what a function of that name makes or finds at the press, has its `title` and
 * `meaning`; its `path`, and the `scope` that it takes; `word`: what the reason is called in the body, null: it takes
 * none; `usual`: the reason where nobody writes one, null: none; `needed`: there has to be one; `more`: what else the
 * body has; `foresee`: makes the words of what it would change, out of the answer to a GET of the same path; `undo`:
 * finds, before it is given, what makes the order that takes it back out of its answer, or null; `final`: what is said
 * then; `done`: is told the answer. With Shift it asks for a reason first. */
export const ordering = (name, kind, wanted) =>
  button(name, kind, ({ shiftKey }) => {
    if (typeof wanted !== "function") return press(wanted, shiftKey);
    Promise.resolve(wanted()).then(found => press(found, shiftKey), error => tell(`Not done: ${name}. ${error.message}`));
  });

function press(wanted, isAsked) {
  if (isUnderWay) return;
  if (isAsked || !isFree(wanted) || lacksReason(wanted)) return ask(wanted);
  give(wanted, wanted.usual, keys.get(wanted.scope) ?? "").catch(error => {
    if (!FORBIDDEN.includes(error.status)) {
      return tell(`${error.wasSent ? "Not known whether this was done" : "Not done"}: ${wanted.title}. ${error.message}`);
    }
    keys.clear();
    ask(wanted);
    problem(error.message);
  });
}

const isFree = ({ scope }) => keys.has(scope) || isOpen();
const lacksReason = ({ needed, usual }) => needed && !usual;

async function give(wanted, reason, key) {
  isUnderWay = true;
  tell(`${wanted.title} …`);
  try {
    const undo = await wanted.undo();
    const answer = await send(wanted, reason, key);
    const waits = answer.status === "accepted", back = undo?.(answer);
    tell(waits ? `Ordered: ${wanted.title}. The release controller has not answered yet.` : `Done: ${wanted.title}.`,
      back ? ordering("undo", "undo", back) : wanted.final ?? "It has no undo: what served before is not known, or serves still.");
    wanted.done?.(answer);
  } catch (error) {
    tell();
    throw error;
  } finally {
    isUnderWay = false;
    document.dispatchEvent(new Event("changed"));
  }
}

/** Remembers a key that the service accepts, also where it refuses the order itself. */
async function send({ path, scope, word, more }, reason, key) {
  const reading = keyForReading();
  const remember = () => {
    if (keyForReading() !== reading) return;  // it was changed meanwhile, and all are forgotten
    for (const each of INCLUDED[scope]) if (key || reading) keys.set(each, key || reading);
  };
  try {
    const answer = await post(path, { ...more, ...word && reason ? { [word]: reason } : {} }, key);
    remember();
    return answer;
  } catch (error) {
    if (error.status && !FORBIDDEN.includes(error.status)) remember();
    if (error.status) throw error;
    // It may have arrived: somebody who reads "not done" would give it twice.
    throw Object.assign(new Error(`${error.message}: check whether it was done before you press again.`), { wasSent: true });
  }
}

/** Shows words under the header; without any it hides them. */
function tell(...words) {
  bar.hidden = !words.length;
  bar.replaceChildren(...words.map(word => word instanceof Node ? word : make("span", "", word)),
    button("×", "close", () => tell(), "Close"));
}

function ask(wanted) {
  pending = wanted;
  at("order-foreseen").replaceChildren();
  if (wanted.foresee) foresee(wanted);
  at("order-title").textContent = wanted.title;
  at("order-meaning").textContent = wanted.meaning;
  at("why-label").textContent = wanted.usual || wanted.needed ? "Why" : "Note";
  at("why").placeholder = wanted.usual ?? "";
  at("why").required = Boolean(lacksReason(wanted));
  at("why").value = "";
  at("why").parentElement.hidden = !wanted.word;
  at("admin-key").value = keys.get(wanted.scope) ?? keys.get("operate") ?? "";
  problem("");
  dialog.showModal();
  at(wanted.word && (isFree(wanted) || lacksReason(wanted)) ? "why" : "admin-key").focus();
}

async function foresee(wanted) {
  const tell = (...words) => wanted === pending && at("order-foreseen").replaceChildren(...words);
  tell("…");
  await get(wanted.path).then(found => tell(...wanted.foresee(found)), error => tell(`What it leaves behind is not known: ${error.message}`));
}

async function agree(event) {
  event.preventDefault();
  at("order-do").disabled = true;
  try {
    await give(pending, at("why").value.trim() || pending.usual, at("admin-key").value);
    dialog.close();
  } catch (error) {
    problem(error.message);
  } finally {
    at("order-do").disabled = false;
  }
}

function problem(what) {
  at("order-problem").textContent = what;
  at("order-problem").hidden = !what;
}

dialog.querySelector("form").addEventListener("submit", agree);
at("order-not").addEventListener("click", () => dialog.close());

// Under another key nothing of what the last one did stays: the next order asks whose it is.
document.addEventListener("key", () => {
  keys.clear();
  if (!isUnderWay) tell();
});
