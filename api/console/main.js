// The views, their keys, and what is asked for again and again while somebody looks.

import { at } from "./dom.js";
import * as alarms from "./views/alarms.js";
import * as curves from "./views/curves.js";
import * as health from "./views/health.js";
import * as learner from "./views/learner.js";
import * as releases from "./views/releases.js";
import * as rewards from "./views/rewards.js";
import * as story from "./views/story.js";

const PERIOD_MS = 3000, CURVES_PERIOD_MS = 10000;
const drawn = () => Promise.all([curves.refresh(), learner.refresh()]);
const REFRESH = { curves: drawn, releases: releases.refresh, alarms: alarms.refresh, health: health.refresh };
const VIEWS = ["rewards", "curves", "releases", "alarms", "health"];
const problems = new Map();  // of whom: what
let view = "";
let lastCurves = 0;
let wake = () => {};

function report(whose, what) {
  if (what) problems.set(whose, what);
  else problems.delete(whose);
  at("problem").textContent = [...new Set(problems.values())].join("; ");
  at("problem").hidden = !problems.size;
}

async function attempt(whose, work) {
  await work().then(() => report(whose, ""), error => report(whose, error.message));
}

const again = () => REFRESH[view] && attempt("view", REFRESH[view]);

function route() {
  const [name, id] = location.hash.slice(1).split("/");
  const wanted = name === "turn" ? "rewards" : VIEWS.includes(name) ? name : "rewards";
  if (wanted !== view) {
    view = wanted;
    for (const each of VIEWS) at(each).hidden = each !== view;
    for (const tab of document.querySelectorAll("[role=tab]")) tab.setAttribute("aria-selected", tab.hash === `#${view}`);
    scrollTo(0, 0);
    report("view", "");
    again();
  }
  if (name === "turn" && id) story.show(decodeURIComponent(id));
  else story.close();
}

async function poll() {
  for (;;) {
    if (!document.hidden) {
      await attempt("status", () => Promise.all([health.header(), alarms.count()]));
      if (view !== "curves" || Date.now() - lastCurves > CURVES_PERIOD_MS) {
        lastCurves = Date.now();
        await again();
      }
    }
    await new Promise(go => {
      setTimeout(go, PERIOD_MS);
      wake = go;
    });
  }
}

const rows = () => [...document.querySelectorAll(`#${view} .rows .row`)];

function move(by) {
  const all = rows(), here = all.indexOf(document.activeElement);
  const next = here < 0 ? all[by > 0 ? 0 : all.length - 1] : all[Math.min(all.length - 1, Math.max(0, here + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => move(1),
  ArrowDown: () => move(1),
  k: () => move(-1),
  ArrowUp: () => move(-1),
  Enter: () => document.activeElement.querySelector?.(".actions button")?.focus(),
  Escape: () => { if (!at("story").hidden) location.hash = "rewards"; },
  "/": () => { location.hash = "rewards"; at("filter").focus(); },
  p: rewards.togglePause,
  "?": () => at("help").showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input, select");
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing) return;
  if (event.key === "Enter" && !event.target.matches("div.row")) return;  // buttons and links know what to do
  if (at("story").contains(event.target) && event.key.startsWith("Arrow")) return;  // it scrolls
  const act = VIEWS[event.key - 1] ? () => { location.hash = VIEWS[event.key - 1]; } : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

document.addEventListener("keydown", onKey);
for (const news of ["key", "changed"]) {
  document.addEventListener(news, () => {
    lastCurves = 0;
    wake();
  });
}
window.addEventListener("hashchange", route);
at("help-button").addEventListener("click", KEYS["?"]);
rewards.begin(what => report("stream", what));
releases.begin(what => report("order", what));
curves.begin(again);
learner.begin();
alarms.begin(again);
route();
poll();
