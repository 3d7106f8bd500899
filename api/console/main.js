// The views, their keys, and what is asked for again and again while somebody looks.

import { at } from "./dom.js";
import * as drafts from "./suites/drafts.js";
import * as alarms from "./views/alarms.js";
import * as clients from "./views/clients.js";
import * as curves from "./views/curves.js";
import * as frontier from "./views/frontier.js";
import * as gain from "./views/gain.js";
import * as health from "./views/health.js";
import * as learner from "./views/learner.js";
import * as overview from "./views/overview.js";
import * as releases from "./views/releases.js";
import * as rewards from "./views/rewards.js";
import * as sessions from "./views/sessions.js";
import * as story from "./views/story.js";

const PERIOD_MS = 3000, SLOW_PERIOD_MS = 10000;
const drawn = () => Promise.all([curves.refresh(), frontier.refresh(), learner.refresh()]);
const REFRESH = {
  overview: overview.refresh,
  curves: drawn, releases: releases.refresh, alarms: alarms.refresh, health: health.refresh, sessions: sessions.refresh,
  clients: clients.refresh, drafts: drafts.refresh,
};
const VIEWS = ["overview", "rewards", "curves", "releases", "alarms", "health", "sessions", "clients", "drafts"];
const SLOW = ["overview", "curves", "sessions", "clients", "drafts"];  // what they ask for is not asked for every time
const HOME = { turn: "rewards", session: "sessions", draft: "drafts" };  // what is one of a list, and the view with the list
const problems = new Map();  // of whom: what
let view = "";
let lastSlow = 0;
let opened = "overview";  // where the story of a turn was opened
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
  const wanted = name === "turn" && view === "sessions" ? view : HOME[name] ?? (VIEWS.includes(name) ? name : "overview");
  if (wanted !== view) enter(wanted);
  if (name === "turn" && id) {
    document.querySelector(`#${view} .beside`).append(at("story"));
    story.show(decodeURIComponent(id));
    return;
  }
  opened = location.hash.slice(1) || "overview";
  story.close();
  if (name === "session" && id) sessions.show(decodeURIComponent(id));
  else if (view === "sessions") sessions.close();
  if (name === "sessions" && id) sessions.seek(decodeURIComponent(id));
  if (name === "draft" && id) drafts.show(decodeURIComponent(id));
  else if (view === "drafts" && drafts.close()) again();
}

function enter(wanted) {
  view = wanted;
  for (const each of VIEWS) at(each).hidden = each !== view;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isChosen = tab.hash === `#${view}`;
    tab.setAttribute("aria-selected", isChosen);
    if (isChosen) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.clientWidth / 2;  // where not all fit
  }
  scrollTo(0, 0);
  for (const whose of ["view", "sessions"]) report(whose, "");
  again();
}

/** One step out: of a turn's story, of a session, of a draft. */
function back() {
  if (!at("story").hidden) location.hash = opened;
  else if (location.hash.startsWith("#session/")) location.hash = "sessions";
  else if (location.hash.startsWith("#draft/")) location.hash = "drafts";
}

async function poll() {
  for (;;) {
    if (!document.hidden) {
      await attempt("status", () => Promise.all([health.header(), alarms.count()]));
      const isDue = Date.now() - lastSlow > SLOW_PERIOD_MS;
      if (isDue) {
        lastSlow = Date.now();
        await attempt("gain", gain.refresh);
      }
      if (isDue || !SLOW.includes(view)) await again();
    }
    await new Promise(go => {
      setTimeout(go, PERIOD_MS);
      wake = go;
    });
  }
}

const rows = () => [...document.querySelectorAll(`#${view} .rows .row`)].filter(row => row.checkVisibility());

function move(by) {
  const all = rows(), here = all.indexOf(document.activeElement);
  const next = here < 0 ? all[by > 0 ? 0 : all.length - 1] : all[Math.min(all.length - 1, Math.max(0, here + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function find() {
  if (view === "sessions") return at("session-search").focus();
  location.hash = "rewards";
  at("filter").focus();
}

const KEYS = {
  j: () => move(1),
  ArrowDown: () => move(1),
  k: () => move(-1),
  ArrowUp: () => move(-1),
  Enter: () => document.activeElement.querySelector?.(".actions button")?.focus(),
  Escape: back,
  "/": find,
  p: rewards.togglePause,
  "?": () => at("help").showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input, select, textarea");
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
document.addEventListener("key", () => {
  sessions.forget();
  drafts.forget();
  route();  // what is open is asked for again
});
for (const news of ["key", "changed"]) {
  document.addEventListener(news, () => {
    lastSlow = 0;
    wake();
  });
}
window.addEventListener("hashchange", route);
at("help-button").addEventListener("click", KEYS["?"]);
rewards.begin(what => report("stream", what));
releases.begin(again);
curves.begin(again);
frontier.begin(again);
learner.begin();
overview.begin();
alarms.begin(again);
sessions.begin(what => report("sessions", what));
drafts.begin(again);
story.begin(back);
route();
poll();
