// Organisations and clusters: what serves whom, what it used, what is wrong with it, and how far the others are.

import { at, duration, fill, number, percent, plain, time } from "./dom.js";
import { get } from "./wire.js";

const SILENT_S = 60;
const SHOWN_STATE = { pinned: "ok", steady: "ok", canary: "canary", held: "held", starting: "starting", erased: "wrong" };

const spent = (used, most) => most === null ? number(used) : `${number(used)} of ${number(most)} (${percent(used / most)})`;

function month(used) {
  if (!used) return "no quota";
  return `${spent(used.requests, used.requests_per_month)} requests, ${spent(used.tokens, used.tokens_per_month)} tokens`;
}

const isSpent = used => used && [["requests", "requests_per_month"], ["tokens", "tokens_per_month"]]
  .some(([of, most]) => used[most] !== null && used[of] >= used[most]);

function alarms({ open, critical, hold_releases: holding }) {
  if (!open) return "none";
  const parts = [critical && `${number(critical)} critical`, holding && `${number(holding)} ${holding === 1 ? "holds" : "hold"} releases`].filter(Boolean);
  return parts.length ? `${number(open)}: ${parts.join(", ")}` : number(open);
}

function organisation(each) {
  const { canary, versions } = each;
  const workloads = Object.entries(each.workloads).map(([name, policy]) => `${name} by ${policy}`);
  return [
    each.policy,
    [...each.namespaces, ...workloads].join(", ") || "all without one of their own",
    [each.live ?? "none", each.live ? "live" : "wrong"],
    each.live_since ? time(each.live_since) : "–",
    [each.erasure_id ? `erased: order ${each.erasure_id}` : each.state, SHOWN_STATE[each.state]],
    canary ? [`${canary.canary} for ${percent(canary.share)}, since ${time(canary.started_at)}`, "canary"] : "none",
    Object.entries(versions).map(([name, count]) => `${number(count)} ${plain(name)}`).join(", ") || "none",
    [month(each.month), isSpent(each.month) ? "bad" : ""],
    [alarms(each.alarms), each.alarms.critical ? "bad" : each.alarms.open ? "even" : ""],
  ];
}

function cluster(each) {
  return [
    each.cluster,
    each.role,
    each.live === null ? ["none", "wrong"] : `version ${each.live}`,
    [each.behind ? `${number(each.behind)} ${each.behind === 1 ? "release" : "releases"}` : "no release", each.behind ? "even" : "ok"],
    `${number(each.unsent)} records`,
    [`${duration(each.seen_s_ago)} ago`, each.seen_s_ago > SILENT_S ? "wrong" : ""],
  ];
}

export async function refresh() {
  const [organisations, clusters] = await Promise.all([get("v1/organisations"), get("v1/clusters")]);
  at("organisations-month").textContent = `Quotas: of ${organisations.month}, of UTC`;
  fill(at("organisation-rows"), organisations.data.map(organisation), "none");
  at("clusters-problem").textContent = clusters.unreachable ?? "";
  at("clusters-problem").hidden = !clusters.unreachable;
  fill(at("cluster-rows"), clusters.data.map(cluster), clusters.unreachable ? "nobody can say" : "there is one cluster");
}
