// Asks once before an order is given: why, if anybody wants to say it, and the admin's key, which nothing but this page's memory keeps.

import { at } from "./dom.js";
import { get, post } from "./wire.js";

const dialog = at("order");
let adminKey = "";
let pending = null;

/** `word`: what the reason is called in the body; `usual`: the reason where nobody writes one, null: none; `foresee`:
 * makes the words of what it would change, out of the answer to a GET of the same path; `more`: what else the body has.
 * Without a word there is no reason to give; `needed`: there has to be one. */
export function ask({ title, meaning, path, word, usual = null, needed = false, more = {}, done, foresee = null }) {
  pending = { path, word, usual, more, done };
  at("order-foreseen").replaceChildren();
  if (foresee) show(pending, foresee);
  at("order-title").textContent = title;
  at("order-meaning").textContent = meaning;
  at("why-label").textContent = usual || needed ? "Why" : "Note";
  at("why").required = needed;
  at("why").parentElement.hidden = !word;
  at("why").placeholder = usual ?? "";
  at("why").value = "";
  at("admin-key").value = adminKey;
  tell("");
  dialog.showModal();
  at(word ? "why" : "admin-key").focus();
}

async function show(asked, foresee) {
  const tell = (...words) => asked === pending && at("order-foreseen").replaceChildren(...words);
  tell("…");
  await get(asked.path).then(found => tell(...foresee(found)), error => tell(`What it leaves behind is not known: ${error.message}`));
}

async function give(event) {
  event.preventDefault();
  adminKey = at("admin-key").value;
  const { path, word, usual, more, done } = pending;
  const reason = at("why").value.trim() || usual;
  at("order-do").disabled = true;
  try {
    const answer = await post(path, { ...more, ...word && reason ? { [word]: reason } : {} }, adminKey);
    dialog.close();
    done?.(answer);
    document.dispatchEvent(new Event("changed"));
  } catch (error) {
    tell(error.message);
  } finally {
    at("order-do").disabled = false;
  }
}

function tell(problem) {
  at("order-problem").textContent = problem;
  at("order-problem").hidden = !problem;
}

dialog.querySelector("form").addEventListener("submit", give);
at("order-not").addEventListener("click", () => dialog.close());
