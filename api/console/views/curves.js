// Curves: what the newest turns were worth, by time, version and arm; how long feedback took to be served; conduct.

import { at, duration, make, number, plain } from "../dom.js";
import { Chart, columns } from "../charts.js";
import { get } from "../wire.js";

const amount = value => value.toFixed(2);
const seconds = stamp => Date.parse(stamp) / 1000;
const version = row => row.version;
const share = value => `${Math.round(100 * value)} %`;
const banded = (lows, highs) => Object.fromEntries(Object.keys(lows).map(name => [name, [lows[name], highs[name]]]));
const capital = name => name[0].toUpperCase() + name.slice(1);

const charts = {
  quality: new Chart("Quality", "share of turns worth more than nothing, and mean reward: dots; their moving means, with 95 % bands",
    { over: "time", unit: "share, reward", show: amount }),
  versions: new Chart("Reward by version", "mean, by arm, with its 95 % band", { over: "version", unit: "mean reward", show: amount }),
  parts: new Chart("Reward by part", "what each adds to a version's mean", { over: "version", unit: "reward", show: amount }),
  latency: new Chart("Feedback to served", "from an outcome's arrival to the release of what learned from it",
    { over: "version", unit: "time", show: duration, lacks: "the first version that learned from feedback" }),
  conduct: new Chart("Conduct", "share of a version's turns that search, edit, run tests",
    { over: "version", unit: "share of turns", show: share, range: [0, 1] }),
  effort: new Chart("Effort", "tokens for each turn", { over: "version", unit: "tokens", show: value => value.toFixed(1) }),
  pace: new Chart("Pace", "seconds for each turn", { over: "version", unit: "time", show: duration }),
};

export async function refresh() {
  const workload = at("workload").value ? `&workload=${encodeURIComponent(at("workload").value)}` : "";
  const [curves, behaviour] = await Promise.all([
    get(`v1/curves?turns=${at("window").value}${workload}`),
    get(`v1/behaviour?turns=1000${workload}`),
  ]);
  at("counted").textContent = `${number(curves.turns)} turns; conduct of the last ${number(behaviour.turns)}`;
  choose(curves.workloads);
  const over = pick => columns(curves.quality, row => seconds(row.at), pick);
  const pairs = (good, mean) => ({ good, "mean reward": mean });
  const [, lows] = over(({ smooth }) => pairs(smooth.good_low, smooth.mean_low));
  const [, highs] = over(({ smooth }) => pairs(smooth.good_high, smooth.mean_high));
  charts.quality.draw(...over(({ smooth }) => pairs(smooth.good, smooth.mean)),
    { bands: banded(lows, highs), dots: over(row => pairs(row.good, row.mean))[1] });
  const by = figure => columns(curves.versions, version, row => ({ [row.arm]: row[figure] }));
  charts.versions.draw(...by("mean"), { bands: banded(by("low")[1], by("high")[1]) });
  charts.parts.draw(...columns(curves.versions, version, row => row.components));
  charts.latency.draw(...columns(curves.latency, version, row => ({ p50: row.p50_s, p99: row.p99_s })));
  charts.conduct.draw(...columns(behaviour.versions, version, row =>
    ({ searches: row.searches, edits: row.edits, tests: row.tests })));
  charts.effort.draw(...columns(behaviour.versions, version, row => ({ tokens: row.tokens })));
  charts.pace.draw(...columns(behaviour.versions, version, row => ({ seconds: row.seconds })));
}

function choose(workloads) {
  const select = at("workload"), chosen = select.value;
  const wanted = ["", ...new Set([...workloads, chosen].filter(Boolean))];
  if (wanted.join() === [...select.options].map(option => option.value).join()) return;
  select.replaceChildren(...wanted.map(name => {
    const option = make("option", "", name ? capital(plain(name)) : "all");
    option.value = name;
    return option;
  }));
  select.value = chosen;
}

export function begin(again) {
  at("charts").append(...Object.values(charts).map(chart => chart.figure));
  for (const id of ["workload", "window"]) at(id).addEventListener("change", again);
  const repaint = () => Object.values(charts).forEach(chart => chart.plot && chart.build());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
