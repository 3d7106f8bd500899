// Asks what an order needs before it is given: why, and the admin's key, which nothing but this page's memory keeps.

import { at } from "./dom.js";
import { get, post } from "./wire.js";

const dialog = at("order");
let adminKey = "";
let pending = null;

/** `word`: what the reason is called in the body; `needed`: whether there must be one; `foresee`: makes the words of
 * what it would change, out of what `look` finds with the admin's key, else of the answer to a GET of the same path;
 * `blind`: whether it may be given where that is not known; `body`: what the order says beside the reason; `typed`: what
 * must be typed, letter by letter, before what cannot be taken back is done; `give`: how the service is told. */
export function ask({ title, meaning, path, word, needed, done, foresee = null, look = () => get(path), blind = true, body = {}, typed = "", give = post }) {
  pending = { path, word, needed, done, body, look, foresee, blind, typed, give };
  at("typed-label").hidden = !typed;
  at("typed-asked").textContent = typed;
  at("typed").value = "";
  at("order-foreseen").replaceChildren();
  at("order-title").textContent = title;
  at("order-meaning").textContent = meaning;
  at("why-label").textContent = needed ? "Why" : "Note";
  at("why").required = needed;
  at("why").value = "";
  at("admin-key").value = adminKey;
  tell("");
  show(pending);
  dialog.showModal();
  at("why").focus();
}

/** Says what the order would change; until that is known it cannot be given. */
async function show(asked) {
  const turn = asked.turn = (asked.turn ?? 0) + 1;  // another key may be entered meanwhile
  asked.isStale = false;
  const tell = (isKnown, ...words) => {
    if (asked !== pending || asked.turn !== turn || asked.isStale) return;
    at("order-foreseen").replaceChildren(...words);
    asked.isKnown = isKnown;
    allow();
  };
  if (!asked.foresee) return tell(true);
  tell(false, "…");
  await asked.look(at("admin-key").value).then(
    found => tell(true, ...asked.foresee(found)),
    error => tell(asked.blind, `What it would change is not known: ${error.message}`));
}

/** It can be given once it is known what it changes, and what is to be typed stands there. */
function allow() {
  at("order-do").disabled = !pending.isKnown || pending.isStale || at("typed").value !== pending.typed;
}

async function give(event) {
  event.preventDefault();
  allow();
  if (at("order-do").disabled) return;
  adminKey = at("admin-key").value;
  const { path, word, done, body, give: told } = pending;
  const reason = at("why").value.trim();
  at("order-do").disabled = true;
  try {
    const answer = await told(path, reason ? { ...body, [word]: reason } : body, adminKey);
    dialog.close();
    done?.(answer);
    document.dispatchEvent(new Event("changed"));
  } catch (error) {
    tell(error.message);
  } finally {
    allow();
  }
}

function tell(problem) {
  at("order-problem").textContent = problem;
  at("order-problem").hidden = !problem;
}

dialog.querySelector("form").addEventListener("submit", give);
/** Another key may see something else: the order waits for that, too. */
function doubt() {
  if (pending.blind) return;
  pending.isStale = true;
  allow();
}

function lookAgain() {
  if (pending.isStale && dialog.open) show(pending);
}

at("admin-key").addEventListener("input", doubt);
at("typed").addEventListener("input", allow);
for (const left of ["change", "blur"]) at("admin-key").addEventListener(left, lookAgain);
at("order-not").addEventListener("click", () => dialog.close());
