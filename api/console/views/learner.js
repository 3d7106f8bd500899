// The learner: what each version's update was made of, how stale its turns were, where the learner's time went.

import { at } from "../dom.js";
import { Chart, columns } from "../charts.js";
import { get } from "../wire.js";

const VERSIONS = 100;
const fine = value => value.toPrecision(3);
const share = value => `${(100 * value).toFixed(1)} %`;
const count = value => value.toFixed(1);
const over = (title, unit, note, show, range = null, lacks = "an update of the learner") => new Chart(title, note,
  { over: "version", unit, show, range, lacks });

/** Of each chart: itself, and its lines: {name: figure}, or a function of a version's figures. */
const CHARTS = [
  [over("Loss", "loss", "a token's, by its terms; of late turns by KTO, of users' own texts", fine),
    { loss: "loss", policy: "policy_loss", KL: "kl_loss", entropy: "entropy_loss", KTO: "kto_loss",
      texts: "demonstration_loss" }],
  [over("Ratio", "ratio", "policy over behaviour, of an update's tokens", fine),
    { "1 %": "ratio_p01", median: "ratio_p50", "99 %": "ratio_p99", most: "ratio_max" }],
  [over("Left out", "share", "share of tokens that a bound changed, or that are masked; share of turns left out", share, [0, 1]),
    figures => ({ bounded: figures.truncated, masked: figures.masked, turns: 1 - figures.kept_share })],
  [over("KL and entropy", "nats a token", "k3 to the anchor; nats a token", fine), { KL: "kl", entropy: "entropy" }],
  [over("Baseline", "share", "how much of what sets rewards apart it knows", share), { explained: "explained_variance" }],
  [over("Baseline's fit", "error", "its own error, a token's", fine), { error: "value_loss" }],
  [over("Gradient", "norm", "its norm, before it is clipped", fine), { norm: "gradient_norm" }],
  [over("Staleness", "versions", "versions released since a token was sampled", count),
    { mean: "versions_behind", most: "versions_behind_max" }],
  [over("Effective sample", "share", "ESS of a micro-batch, as a share of it", share, [0, 1]), { ESS: "ess" }],
  [over("Divergence", "nats", "k3 to the policy that sampled, a turn's mean", fine), { divergence: "divergence" }],
  [over("Reward mass", "advantage", "absolute advantage that trained weights, by the age of its outcome; what was left out", fine), mass],
  [over("The learner's time", "share", "share of it since the version before", share, [0, 1]), spent],
  [over("Pace", "a second", "a second, while it updates: sampled tokens; positions, with prompts", value => value.toFixed(0)),
    { tokens: "tokens_per_s", positions: "positions_per_s" }],
  [over("Checkpoints", "gigabytes", "what they take of the disk, in gigabytes", value => (value / 1e9).toFixed(2), null, "a checkpoint"),
    { "on disk": "checkpoint_disk_bytes" }],
  [over("MFU", "share", "share of learner.compute.peak_tflops", share, null, "an update once learner.compute.peak_tflops is set"),
    { MFU: "mfu" }],
];

const AGES = { "1m": "a minute", "1h": "an hour", "1d": "a day", older: "older" };

/** An age that an update has nothing of counts as 0; no update, no line. */
function mass(figures) {
  const of = (prefix, age) => figures[`${prefix}_mass_${age}`] ?? 0;
  const trained = Object.entries(AGES).map(([age, words]) => [words, of("reward", age)]);
  return { ...Object.fromEntries(trained), "left out": Object.keys(AGES).reduce((sum, age) => sum + of("untrained", age), 0) };
}

function spent(figures) {
  const parts = ["waiting", "reading", "updating", "publishing", "saving"].map(name => [name, figures[`seconds_${name}`] ?? 0]);
  const whole = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  return Object.fromEntries(parts.map(([name, seconds]) => [name, seconds / whole]));
}

export async function refresh() {
  const listed = await get(`v1/policies?limit=${VERSIONS}`);
  const learned = listed.data.filter(({ metrics }) => "loss" in metrics).reverse();
  for (const [chart, lines] of CHARTS) {
    const pick = typeof lines === "function" ? lines : figures =>
      Object.fromEntries(Object.entries(lines).map(([name, figure]) => [name, figures[figure] ?? null]));
    chart.draw(...columns(learned, row => row.version, row => pick(row.metrics)));
  }
}

export function begin() {
  at("learner-charts").append(...CHARTS.map(([chart]) => chart.figure));
  const repaint = () => CHARTS.forEach(([chart]) => chart.plot && chart.build());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
