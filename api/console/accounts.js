// Who may do what, what they used, and what they did: quotas, costs, keys and the audit trail. And the way in and out.

import { at, button, fill, make, number, plain, time } from "./dom.js";
import { ask } from "./order.js";
import { get, post } from "./wire.js";

const SHOWN_ENTRIES = 200;
let me = { scopes: null };

const may = scope => me.scopes?.includes(scope);

/** Says in the header who looks, and offers the way in or out where there is one. */
export async function header() {
  me = await get("v1/me");
  const way = at("sign-in");
  way.hidden = !me.sign_in;
  if (!me.sign_in) return;
  const said = me.signed_in ? button(`Sign out ${me.by.replace("oidc:", "")}`, "", leave) : make("a", "", "Sign in");
  if (!me.signed_in) said.href = me.sign_in;
  way.replaceChildren(said);
}

async function leave() {
  await post("signin/end", {});
  location.reload();
}

const amount = (used, left) => left === null ? number(used) : `${number(used)} of ${number(used + left)}`;

function quotaRow({ kind, name, used, left, limits }) {
  const ends = left.requests === 0 || left.tokens === 0 ? "bad" : "";
  const minute = [limits.requests_per_minute && `${number(limits.requests_per_minute)} requests`,
    limits.tokens_per_minute && `${number(limits.tokens_per_minute)} tokens`].filter(Boolean).join(", ");
  return [kind, name, [amount(used.requests, left.requests), ends], [amount(used.tokens, left.tokens), ends], minute || "no limit"];
}

const hours = ms => ms ? `${(ms / 3600000).toFixed(2)} h` : "";

function costRow({ namespace, policy, used, cost }) {
  return [namespace ?? "learner", policy, number(used.turns), number(used.prompt_tokens), number(used.output_tokens),
    hours(used.answer_ms), hours(used.learner_ms), number(used.held_bytes), cost ? cost.total.toFixed(2) : ""];
}

function revoke(key) {
  return button("revoke", "", () => ask({
    title: `Revoke ${key.key_id}`,
    meaning: `${key.name} of ${key.namespace}: within seconds nobody comes in with it any more.`,
    path: `v1/keys/${key.key_id}/revoke`,
    word: "why",
    needed: false,
  }));
}

function keyRow(key) {
  const ends = key.revoked_at ? `revoked ${time(key.revoked_at)}` : key.expires_at ? time(key.expires_at) : "never";
  const cells = [key.key_id, key.name, key.namespace, key.scopes.join(", "), time(key.created_at), ends,
    key.used_at ? `${time(key.used_at).slice(0, -6)} h` : "never"].map(text => make("td", "", text));
  return make("tr", "", ...cells, make("td", "actions", key.state === "in force" ? revoke(key) : plain(key.state)));
}

function entryRow({ sequence, at: when, by, kind, what, objects, users, status, digest }) {
  const about = [...Object.entries(objects).map(([name, value]) => `${plain(name)} ${value}`),
    users.length && `users ${users.map(user => user.slice(0, 8)).join(", ")}`].filter(Boolean).join(" · ");
  return [sequence, time(when), by, kind, what, about, [status ?? "", status >= 400 ? "bad" : ""], digest.slice(0, 12)];
}

const lacks = scope => `needs a key, or a role, with the scope ${scope}`;

export async function refresh() {
  await header();
  const [quotas, costs, keys, trail] = await Promise.all([
    may("read") ? get("v1/quotas") : { data: [] },
    may("read") ? get("v1/costs") : { data: [] },
    may("admin") ? get("v1/keys") : { data: [], configured: 0 },
    may("audit") ? get(`v1/audit?limit=${SHOWN_ENTRIES}`) : { data: [] },
  ]);
  at("quota-month").textContent = quotas.month ? `In ${quotas.month}, of UTC` : "";
  fill(at("quota-rows"), quotas.data.map(quotaRow), may("read") ? "no quotas, or nothing used" : lacks("read"));
  at("cost-total").textContent = costs.currency ? `${costs.total.toFixed(2)} ${costs.currency} in ${costs.month}` : "";
  fill(at("cost-rows"), costs.data.map(costRow), may("read") ? "nothing used in this month" : lacks("read"));
  fill(at("key-rows"), [], may("admin") ? "no keys in the store" : lacks("admin"));
  if (keys.data.length) at("key-rows").replaceChildren(...keys.data.map(keyRow));
  at("keys-counted").textContent = keys.configured ? `${keys.configured} more stand in the settings` : "";
  fill(at("audit-rows"), trail.data.map(entryRow), may("audit") ? "nothing yet" : lacks("audit"));
}
