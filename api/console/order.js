// Asks what an order needs before it is given: why, and the admin's key, which nothing but this page's memory keeps.

import { at } from "./dom.js";
import { post } from "./wire.js";

const dialog = at("order");
let adminKey = "";
let pending = null;

/** `word`: what the reason is called in the body; `needed`: whether there must be one. */
export function ask({ title, meaning, path, word, needed, done }) {
  pending = { path, word, needed, done };
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
