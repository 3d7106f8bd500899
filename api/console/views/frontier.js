// The frontier: what each version achieves in whole tasks, and what it takes for that, as a picture and a table.

import { at, duration, fill, make, number, percent } from "../dom.js";
import { get } from "../wire.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 560, HEIGHT = 260, LEFT = 52, BOTTOM = 34, TOP = 14, RIGHT = 24, TICKS = 4, ROUNDING = 1e-9;
const SHOWN = {
  tokens: value => value < 10000 ? number(Math.round(value)) : `${number(Math.round(value / 1000))}k`,
  seconds: duration,
  cost: value => value.toPrecision(3),
};
const NOTHING = "Nothing yet: it begins with a session whose turns have a reward.";
const UNKNOWN = {
  tokens: "No session's tokens are known.",
  seconds: "No session's seconds are known.",
  cost: "Tokens have no price: api.prices sets one.",
};

export async function refresh() {
  const chosen = at("workload").value;
  const found = await get(`v1/frontier?turns=2000${chosen ? `&workload=${encodeURIComponent(chosen)}` : ""}`);
  const expense = at("expense").value;
  const what = found.quality_of === "checks" ? "passed their checks" : "were rewarded above 0";
  at("frontier-note").textContent = `${number(found.tasks)} tasks; quality: the share of them that ${what}`;
  draw(found.versions.filter(row => row[expense] !== null), expense,
    found.versions.length ? UNKNOWN[expense] : NOTHING);
  fill(at("task-rows"), found.versions.toReversed().map(row => cells(row, expense)), "No tasks yet: one is a session whose turns have a reward.");
}

function cells(row, expense) {
  const spent = value => value === null || value === undefined ? "–" : SHOWN[expense](value);
  const mean = value => value.toFixed(1);
  return [
    `${row.version}${row.base ? " (base)" : ""}`, row.harness ?? "–", number(row.tasks),
    [percent(row.quality), row.frontier.includes(expense) ? "best" : ""], mean(row.searches), mean(row.tests),
    mean(row.lint_fixes), row.parallel_share === null ? "–" : percent(row.parallel_share), spent(row[expense]),
    spent(row.per_solved[expense]), spent(row.per_kept_edit[expense]),
  ];
}

function draw(rows, expense, lacks) {
  const plane = at("frontier-plane");
  const words = rows.map(row => `version ${row.version}: ${percent(row.quality)} for ${SHOWN[expense](row[expense])}`);
  plane.setAttribute("aria-label", `Frontier: ${words.join("; ") || lacks}`);
  if (!rows.length) {
    plane.replaceChildren(make("p", "empty", lacks));
    return;
  }
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  const most = 1.08 * Math.max(...rows.map(row => row[expense]), ROUNDING);
  const x = value => LEFT + value / most * (WIDTH - LEFT - RIGHT);
  const y = value => HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP);
  for (let place = 0; place <= TICKS; place++) {
    const part = place / TICKS;
    picture.append(
      shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(part), y2: y(part) }),
      text(LEFT - 8, y(part) + 4, `${100 * part} %`, "end"),
      text(x(part * most), HEIGHT - BOTTOM + 16, SHOWN[expense](part * most), "middle"),
    );
  }
  picture.append(text(LEFT + 4, TOP - 4, "quality", "start"), text(WIDTH - RIGHT, HEIGHT - 2, `${expense} of a task`, "end"));
  const best = rows.filter(row => row.frontier.includes(expense)).sort((one, other) => one[expense] - other[expense]);
  picture.append(shape("path", { class: "best", d: steps(best.map(row => [x(row[expense]), y(row.quality)])) }));
  for (const row of rows) picture.append(...dot(row, x(row[expense]), y(row.quality), expense));
  plane.replaceChildren(picture);
}

/** To the right of a point its quality is to be had; at the next one, more. */
function steps(points) {
  const [[x, y], ...rest] = points;
  return [`M${x},${y}`, ...rest.map(([to, height]) => `H${to}V${height}`), `H${WIDTH - RIGHT}`].join("");
}

function dot(row, x, y, expense) {
  const kind = row.base ? "base" : row.frontier.includes(expense) ? "leads" : "";
  const mark = shape("circle", { class: `dot ${kind}`, cx: x, cy: y, r: row.base ? 6 : 5 });
  const title = shape("title");
  title.textContent = `version ${row.version}${row.harness ? `, ${row.harness}` : ""}: ${percent(row.quality)} of `
    + `${number(row.tasks)} tasks for ${SHOWN[expense](row[expense])} each`;
  mark.append(title);
  const words = row.base ? `base${row.harness ? `, ${row.harness}` : ""}` : `${row.version}`;
  return [mark, x < WIDTH / 2 ? text(x + 8, y - 7, words, "start") : text(x - 8, y - 7, words, "end")];
}

function shape(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function text(x, y, words, anchor) {
  const element = shape("text", { x, y, "text-anchor": anchor });
  element.textContent = words;
  return element;
}

export function begin(again) {
  at("expense").addEventListener("change", again);
}
