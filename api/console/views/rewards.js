// The live stream of rewards, the newest first.

import { at, make, signed, time, tone } from "../dom.js";
import { follow, get } from "../wire.js";
import { open } from "./story.js";

const PAGE = 200, MOST = 2000, NEWEST = Number.MAX_SAFE_INTEGER;
const stream = at("stream"), filter = at("filter"), pause = at("pause");
let rewards = [];  // the newest first
let oldest = NEWEST;
let following = null;  // an AbortController while the stream runs
let fresh = [];  // came since the last frame
let report = () => {};

const FIELDS = {
  namespace: reward => reward.namespace,
  workload: reward => reward.workload,
  session: reward => reward.session_id,
  turn: reward => reward.inference_id,
  name: reward => Object.keys(reward.components).join(" "),
};

/** Whether each word is in some field; `field:word`, in that one. */
export function matches(reward, words) {
  return words.every(word => {
    const [, name, rest] = word.match(/^(\w+):(.+)$/) ?? [];
    const fields = name in FIELDS ? [FIELDS[name]] : Object.values(FIELDS).concat(each => each.why);
    return fields.some(field => field(reward).toLowerCase().includes(name in FIELDS ? rest : word));
  });
}

const wanted = () => filter.value.toLowerCase().split(/\s+/).filter(Boolean);

function row(reward) {
  const line = make("button", "row reward",
    make("b", `value ${tone(reward.value)}`, signed(reward.value)),
    make("span", "why", reward.why),
    make("small", "meta", `${time(reward.decided_at)} · ${reward.namespace} · ${reward.workload} · ${reward.session_id}`
      + (reward.revision ? ` · revision ${reward.revision}` : "") + (reward.final ? "" : " · may change")));
  line.type = "button";
  line.addEventListener("click", () => open(reward.inference_id));
  return make("li", "", line);
}

function count() {
  const whole = rewards.length, shown = stream.querySelectorAll(".row").length;
  at("shown").textContent = shown === whole ? `${whole} rewards` : `${shown} of ${whole} rewards`;
}

function draw() {
  const words = wanted();
  const found = rewards.filter(reward => matches(reward, words));
  stream.replaceChildren(...found.map(row));
  if (!found.length) stream.append(make("li", "empty", rewards.length ? "None of these match: empty the filter to see them all." : "No rewards yet: one comes when something is said of a turn (POST /v1/feedback)."));
  at("older").hidden = oldest <= 1 || !rewards.length;
  count();
}

function addFresh() {
  const came = fresh.reverse();
  fresh = [];
  if (!came.length) return;
  const wasEmpty = !stream.querySelector(".row");
  rewards = came.concat(rewards);
  if (wasEmpty) return draw();
  const words = wanted();
  stream.prepend(...came.filter(reward => matches(reward, words)).map(row));
  if (rewards.length > MOST) {
    rewards.length = PAGE;
    oldest = rewards.at(-1).sequence;
    draw();
  }
  count();
}

function take(reward) {
  if (!fresh.length) setTimeout(addFresh, 100);
  fresh.push(reward);
}

async function start() {
  following?.abort();
  const mine = following = new AbortController();
  const page = await get(`v1/rewards?before=${NEWEST}&limit=${PAGE}`);
  if (mine.signal.aborted) return;
  fresh = [];
  rewards = page.data;
  oldest = page.data.length ? page.next : 0;  // large ones make a short page
  draw();
  follow(last => `v1/rewards/stream?after=${last}`, rewards[0]?.sequence ?? 0, mine.signal, take, report);
}

export function restart() {
  if (pause.getAttribute("aria-pressed") === "true") return;
  start().catch(error => {
    report(error.message);
    setTimeout(restart, 2000);
  });
}

async function older() {
  const mine = following;
  const page = await get(`v1/rewards?before=${oldest}&limit=${PAGE}`);
  if (mine !== following) return;
  rewards = rewards.concat(page.data);
  oldest = page.data.length ? page.next : 0;  // large ones make a short page
  draw();
}

export function togglePause() {
  const paused = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Go on" : "Pause";
  if (paused) following?.abort();
  else restart();
}

export function begin(tell) {
  report = tell;
  filter.addEventListener("input", draw);
  pause.addEventListener("click", togglePause);
  at("older").addEventListener("click", () => older().catch(error => report(error.message)));
  document.addEventListener("key", () => {
    rewards = [];
    draw();
    if (pause.getAttribute("aria-pressed") === "true") togglePause();
    else restart();
  });
  restart();
}

