// Asks what an order needs before it is given: why, and the admin's key, which nothing but this page's memory keeps.

import { at } from "./dom.js";
import { get, post } from "./wire.js";

const dialog = at("order");
let adminKey = "";
let pending = null;

/** `word`: what the reason is called in the body; `needed`: whether there must be one; `foresee`: makes the words of
 * what it would change, out of the answer to a GET of the same path. */
export function ask({ title, meaning, path, word, needed, done, foresee = null }) {
  pending = { path, word, needed, done };
  at("order-foreseen").replaceChildren();
  if (foresee) show(pending, foresee);
  at("order-title").textContent = title;
  at("order-meaning").textContent = meaning;
  at("why-label").textContent = needed ? "Why" : "Note";
  at("why").required = needed;
  at("why").value = "";
  at("admin-key").value = adminKey;
  tell("");
  dialog.showModal();
  at("why").focus();
}

async function show(asked, foresee) {
  const tell = (...words) => asked === pending && at("order-foreseen").replaceChildren(...words);
  tell("…");
  await get(asked.path).then(found => tell(...foresee(found)), error => tell(`What it leaves behind is not known: ${error.message}`));
}

async function give(event) {
  event.preventDefault();
  adminKey = at("admin-key").value;
  const { path, word, done } = pending;
  const reason = at("why").value.trim();
  at("order-do").disabled = true;
  try {
    const answer = await post(path, reason ? { [word]: reason } : {}, adminKey);
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
