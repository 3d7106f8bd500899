"""The catalogue of metrics: every name, its kind, labels and meaning stand here and nowhere else."""

import math
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.samples import Sample

REGISTRY: Final = CollectorRegistry()
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LOOP_BUCKETS_S = (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 20, 60, 300)


def _counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"onward_{name}", meaning, labels, registry=REGISTRY)


def _gauge(name: str, meaning: str, *labels: str) -> Gauge:
    return Gauge(f"onward_{name}", meaning, labels, registry=REGISTRY)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"onward_{name}", meaning, labels, buckets=buckets, registry=REGISTRY)


# api
TURNS = _counter("turns", "Turns answered, by workload and finish reason", "workload", "finish_reason")
TURN_SECONDS = _histogram("turn_seconds", "From request to last chunk, of normal priority", _LATENCY_BUCKETS_S)
FIRST_TOKEN_SECONDS = _histogram(
    "first_token_seconds", "From request to first token, of normal priority", _LATENCY_BUCKETS_S
)
UNTRAINABLE_TURNS = _counter("untrainable_turns", "Turns that cannot be trained on, by reason", "reason")
REQUEST_ERRORS = _counter("request_errors", "Requests refused or failed, by status", "status")
IGNORED_FIELDS = _counter("ignored_fields", "Fields of requests that changed nothing, by client", "client", "field")
REFUSED_REQUESTS = _counter(
    "refused_requests",
    "Requests to generate that were refused, by namespace, client, protocol and reason",
    "namespace",
    "client",
    "protocol",
    "code",
)
OUTCOMES = _counter("outcomes", "Outcomes acknowledged, by name", "name")
JOINED_EVENTS = _counter(
    "joined_events",
    "Events of editors and agents that became outcomes of a turn, by how the turn was found",
    "source",
    "by",
)
UNJOINED_EVENTS = _counter(
    "unjoined_events",
    "Events of editors and agents that say what a user did, and became no outcome",
    "namespace",
    "source",
    "reason",
)
BRANCHES = _counter("session_branches", "Turns, by how their prompt was made", "how")
OWN_REQUESTS = _counter("own_requests", "Requests of clients for themselves that were known by their prompts", "kind")
UNLOGGED_TURNS = _counter("unlogged_turns", "Turns served while neither log nor spool took them")
LIMITED_REQUESTS = _counter("limited_requests", "Requests refused for their rate, by whose limit it was", "limit")
LOW_PRIORITY_UNDER_WAY = _gauge("low_priority_requests", "Answers of low priority that are under way")
LOW_PRIORITY_REFUSED = _counter(
    "low_priority_refused", "Requests of low priority refused since as many were under way as may be"
)
AUDITED = _counter("audited_deeds", "Entries of the audit trail that this process wrote, by kind", "kind")
AUDIT_BROKEN = _gauge("audit_broken", "Whether the audit trail lacks an entry that it once had (1)")
QUOTA_USED = _gauge(
    "quota_used_share", "Share of a month's quota that a namespace or the keys of a name used", "kind", "account", "of"
)
QUOTA_REFUSED = _counter(
    "quota_refused_requests", "Requests refused for a quota: whose, of what, in which time", "kind", "of", "per"
)
UNHEARD_CONSENTS = _counter(
    "unheard_consents",
    "Requests of which nothing was kept, since the store did not say what is consented to",
)
CONNECTIONS = _gauge("connections", "Connections to the API")
BROKEN_CONNECTIONS = _counter(
    "broken_connections",
    "Connections that the API refused (total, address) or broke off (headers, body, unread, unread_bytes, malformed)",
    "why",
)
UNREAD_BYTES = _gauge("unread_bytes", "Bytes of answers that clients have not taken yet")
BODY_BYTES = _gauge("large_body_bytes", "Bytes of large request bodies that are being read")
REFUSED_BODIES = _counter(
    "refused_bodies", "Request bodies refused before or while they were read: over the size, or busy with others", "why"
)
LIVE_STATE_FALLBACKS = _counter(
    "live_state_fallbacks",
    "Operations of the live state done without those who share it, and why",
    "operation",
    "reason",
)
# ingest
LOG_APPENDS = _counter("log_appends", "Records appended, by topic", "topic")
LOG_APPEND_FAILURES = _counter("log_append_failures", "Batches that the log refused")
LOG_BYTES_UNDER_WAY = _gauge("log_bytes_under_way", "Bytes sent to Kafka and not acknowledged yet")
LOG_LAG = _gauge("log_lag_records", "Records that a group's member has yet to read, by topic", "group", "topic")
LOG_LAG_SECONDS = _gauge(
    "log_lag_seconds", "Age of the record that a group's member read last, 0 when it has read all", "group"
)
LOG_RESETS = _counter("log_resets", "Times that the log did not have what was to be read next, by topic", "topic")
LOG_SKIPPED = _counter("log_skipped_records", "Records that the log dropped before they were read, by topic", "topic")
REBALANCES = _counter("log_rebalances", "Changes of what a group's member owns, by kind", "group", "kind")
ARCHIVED = _counter("archived_records", "Records of the log copied into the archive, by topic", "topic")
ARCHIVE_LAG = _gauge(
    "archive_lag_records",
    "Records not archived yet, as of the last round, by topic and partition",
    "topic",
    "partition",
)
LOG_DELETED = _counter("log_deleted_records", "Records deleted from the log for their age, by topic", "topic")
LOG_OVERDUE = _gauge(
    "log_overdue_records",
    "Records old enough to be deleted that are still to be read or archived, by topic and partition",
    "topic",
    "partition",
)
SPOOLED = _gauge("spooled_records", "Records waiting on disk for the log")
SPOOL_BYTES = _gauge("spool_bytes", "Bytes waiting on disk for the log")
SPOOL_TORN_BYTES = _counter("spool_torn_bytes", "Bytes in the spool that a crash left unfinished, never acknowledged")
WRITER_LAG = _gauge("writer_lag_records", "Records not yet in the store")
DEAD_LETTERS = _counter("dead_letters", "Records set aside, by topic", "topic")
DUPLICATES = _counter("duplicate_events", "Events seen again and ignored, by topic", "topic")
# stages
STAGE_UP = _gauge(
    "stage_up", "Whether a stage does its work (1) or is down (0), as seen by its runner or parent process", "part"
)
STAGE_RESTARTS = _counter("stage_restarts", "Times that a stage ended by itself and was started again", "part")
STAGE_RECORDS = _counter("stage_records", "Records that a stage has handled or set aside", "part")
STAGE_FAILED_RECORDS = _counter("stage_failed_records", "Records that a stage could not handle and set aside", "part")
DISK = _gauge("disk_bytes", "Size of the disk that the process keeps its directory on")
DISK_FREE = _gauge("disk_free_bytes", "What of that is free")
for _disk in (DISK, DISK_FREE):
    _disk.set(math.nan)  # until the process has a directory
# scoring
REWARDS = _counter("rewards", "Reward revisions emitted", "kind")
REWARD_VALUE = _gauge("reward_value", "Mean reward of the last 200 first revisions")
SCORER_LAG = _gauge("scorer_lag_records", "Records not yet in the ledger")
SCORER_ODDITIES = _counter(
    "scorer_oddities", "Records that the scorer could not use as they came, or left out, by reason", "reason"
)
OPEN_TURNS = _gauge("ledger_open_turns", "Turns that wait for their outcomes")
WATCHED_TURNS = _counter("watched_turns", "Turns that monitors have seen")
WATCHED_NOW = _gauge("watched_turns_held", "Turns in the monitors' memory")
WATCH_LAG = _gauge("monitor_lag_records", "Records that monitors have yet to read, as of the last look")
MONITOR_FAILURES = _counter("monitor_failures", "Looks that a monitor could not finish, by monitor", "monitor")
LOOK_SECONDS = _gauge("monitor_look_seconds", "How long the monitors' last look took")
ALARMS = _counter("alarms", "Alarms opened, by monitor and severity", "monitor", "severity")
ALARMS_OPEN = _gauge("alarms_open", "Alarms not closed, by monitor, severity and state", "monitor", "severity", "state")
ALERTS = _counter("alerts", "Changes of alarms, by who was to be told and what became of it", "target", "result")
ALERT_FAILURES = _counter(
    "alert_failures", "Attempts to tell of an alarm that failed, by whom and why", "target", "why"
)
ALERTS_WAITING = _gauge("alerts_waiting", "Changes of alarms that a target is still to be told", "target")
JUDGE_TURNS = _counter("judge_turns", "Turns that came to the judge, by result", "result")
JUDGE_REQUESTS = _counter("judge_requests", "Requests to the judge's endpoint, by how they ended", "result")
JUDGE_SECONDS = _histogram("judge_seconds", "From a turn's first request to its judgement in the log", _LOOP_BUCKETS_S)
JUDGE_UNDER_WAY = _gauge("judge_turns_under_way", "Turns that the judge has taken up and not finished")
JUDGE_LAG = _gauge("judge_lag_records", "Records that the judge has not finished with")
# rollouts
ROLLOUTS = _counter(
    "rollouts", "Attempts at episodes, by task set, how they ended and which part failed", "task_set", "end", "part"
)
# learner
UPDATES = _counter("learner_updates", "Optimizer steps")
LEARNED_TURNS = _counter("learned_turns", "Turn revisions that trained weights", "kind")
DROPPED_TURNS = _counter("dropped_turns", "Rewarded turns that did not train, by reason", "reason")
LEARNER = _gauge("learner", "Figures of the last update", "figure")
LEARNED_TOKENS = _counter("learned_tokens", "Sampled tokens in updates")
LEARNER_SECONDS = _counter("learner_seconds", "How the learner spent its time, up to its newest version", "doing")
REWARD_MASS_AGE = _counter("reward_mass", "Reward mass (absolute advantage) trained, by age of outcome", "age")
UNTRAINED_MASS_AGE = _counter(
    "untrained_mass", "Reward mass (absolute advantage) that updates left out, by age of outcome", "age"
)
# serving
POLICY_VERSION = _gauge("policy_version", "The version that serves")
SWAPS = _counter("swaps", "Versions that went live")
ROLLBACKS = _counter("rollbacks", "Versions taken back, by whom", "by")
CANARY = _gauge("canary", "Figures of the running canary's test", "figure")
RELEASE_JUDGEMENTS = _counter("release_judgements", "Times that a canary or the newest release was judged by its turns")
GATE_REFUSALS = _counter("gate_refusals", "Versions that a gate refused")
CASES_SET_ASIDE = _gauge("cases_set_aside", "Eval cases that can be asked of no version, and hold none any more")
PROBE_SECONDS = _counter("probe_seconds", "Time in which candidates were probed for the sanity gate")
REPREFILLED_TOKENS = _counter("reprefilled_tokens", "Tokens computed again because of a swap or a pause")
PREFILLED_TOKENS = _counter("prefilled_tokens", "Prompt tokens computed")
CACHED_TOKENS = _counter("cached_tokens", "Prompt tokens found in a prefix cache")
PAUSED_REQUESTS = _counter("paused_requests", "Times that a request of low priority lost its slot to another")
NOT_FINITE_ROWS = _counter("not_finite_rows", "Requests that failed alone because their numbers were not finite")
GENERATED_TOKENS = _counter("generated_tokens", "Tokens sampled")
RUNNING_REQUESTS = _gauge("running_requests", "Requests in the engine")
BUSY_SECONDS = _counter(
    "engine_busy_seconds", "Time in which the engine had requests, or this process had some in a fleet"
)
WAITING_REQUESTS = _gauge("waiting_requests", "Requests that wait for a slot of the engine in this process")
WAITING_REQUESTS.set(math.nan)  # until there is such an engine
QUEUE_SECONDS = _histogram(
    "queue_seconds", "From the arrival at the engine of a request of normal priority to its slot", _LATENCY_BUCKETS_S
)
REPLICAS = _gauge("replicas", "Engines of the fleet, by state", "state")
REPLICA_REQUESTS = _counter("replica_requests", "Requests sent to a replica, by how they ended", "replica", "outcome")
ROUTER_RETRIES = _counter("router_retries", "Requests that a replica lost before a token, and another was asked")
FEEDBACK_TO_SERVED_SECONDS = _histogram(
    "feedback_to_served_seconds",
    "From an outcome's arrival to the first token of a version that learned from it",
    _LOOP_BUCKETS_S,
)
FEEDBACK_HELD = _counter(
    "feedback_held",
    "Outcomes that are not timed so: releases, or their version, were held after they arrived, or the service was away",
)
FEEDBACK_TO_SERVED_QUANTILE = _gauge(
    "feedback_to_served_quantile_seconds", "The same, exact, over the outcomes that arrived since the start", "quantile"
)


NAMES: Final = frozenset(("namespace", "workload", "target", "account", "task_set"))
"""Labels whose values clients and operators choose."""


class _Sums:
    """The registry's metrics, where those that only such a label tells apart are one."""

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            has_names = any(NAMES & sample.labels.keys() for sample in metric.samples)
            yield _summed(metric) if has_names else metric


def _summed(metric: Metric) -> Metric:
    """Return a counter or gauge without those labels; of shares the greatest stands for all."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for sample in metric.samples:
        rest = tuple((label, value) for label, value in sample.labels.items() if label not in NAMES)
        values.setdefault((sample.name, rest), []).append(sample.value)
    found = Metric(metric.name, metric.documentation, metric.type)
    found.samples = [Sample(name, dict(rest), _as_one(name, each)) for (name, rest), each in values.items()]
    return found


def _as_one(name: str, values: list[float]) -> float:
    if name.endswith("_created"):
        return min(values)
    return max(values) if name.endswith("_share") else sum(values)


def exposition(*, named: bool = True) -> bytes:
    """Prometheus' text format of all metrics of this process; if not `named`, in sums over whatever `NAMES` tell."""
    return generate_latest(REGISTRY if named else _Sums())
