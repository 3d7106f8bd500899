// Who asks, in which protocol; what they get of what they ask for, what comes back, and what a month of it costs.

import { at, fill, number, percent, plain, time } from "../dom.js";
import { get } from "../wire.js";

const MOST = 3;  // reasons in a cell
const share = value => value === null ? "–" : percent(value).replace(" ", "\u00a0");

/** The commonest of {what: count}, in words. */
function named(counts) {
  const rows = Object.entries(counts).sort((one, other) => other[1] - one[1]);
  const words = rows.slice(0, MOST).map(([what, count]) => `${plain(what)} ${number(count)}`);
  return [...words, ...(rows.length > MOST ? [`${rows.length - MOST} more`] : [])].join(", ");
}

const withReasons = (value, counts) => [share(value), named(counts)].filter(Boolean).join(": ");

const UNKNOWN = { no_price: "no price: api.prices sets one", not_counted: "not known before the next month" };
const WHOSE = { namespace: "all of", key: "keys", user: "user" };
const cost = row => row.cost === null ? UNKNOWN[row.cost_unknown] : row.cost.toFixed(2);

function showMonth(found) {
  at("month-counted").textContent = `${found.month}, of UTC; `
    + (found.prices ? `a million tokens cost ${found.prices.prompt} (new in prompts) and ${found.prices.output} (answers)`
      : "tokens have no price, and what has no quota is not counted");
  fill(at("use-rows"), found.data.map(row => [
    `${WHOSE[row.kind]} ${row.name}`, number(row.used.requests), number(row.used.tokens),
    row.left.tokens === null ? "no limit" : number(row.left.tokens), cost(row),
  ]), "Nothing has been counted in this month.");
}

export async function refresh() {
  const [found, month] = await Promise.all([get("v1/clients?turns=1000"), get("v1/quotas?limit=100")]);
  showMonth(month);
  at("clients-counted").textContent = `${number(found.turns)} turns${found.since ? ` since ${time(found.since)}` : ""}; `
    + "refused requests and events joined to no turn: as this process has counted them since its start";
  fill(at("client-rows"), found.data.map(row => [
    row.client, row.protocol, number(row.turns), withReasons(row.trainable_share, row.untrainable), share(row.feedback_share),
    named(row.ignored) || "none", named(row.refused) || "none",
  ]), "Nobody has asked yet: a program asks once its base URL is this service's.");
  const unjoined = Object.entries(found.unjoined).flatMap(([source, reasons]) =>
    Object.entries(reasons).map(([reason, count]) => [source, plain(reason), number(count)]));
  fill(at("unjoined"), unjoined, "None: each event was joined to its turn.");
}
