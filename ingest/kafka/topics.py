"""Onward's topics on Kafka: made by `onward migrate`, checked by `onward doctor`.

Turns and rewards have `ingest.partitions` partitions and are kept until Onward deletes them: brokers would not ask who
has read them (`ingest.archive.retention`). Every other topic has one partition: its volume is small, and each record
builds on the one before, so its readers need a single order. Alarms and dead letters are kept for
`kafka.topics.retention_s`, policies for good. Releases are compacted by version and cluster: every step is kept that
long, then the latest step of each version, in order, for good. The learner, which reads them from the beginning, needs
no more: which version is live, and which were refused."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.errors import InvalidReplicationFactorError, NoError, TopicAlreadyExistsError, for_code

from core.errors import ConfigError, LogError, LogUnavailable
from core.events import Topic
from core.settings import KafkaSettings
from ingest.kafka.clients import connected, explained, options, topic_name

SPREAD: Final = frozenset({Topic.TURNS, Topic.REWARDS})
_KEPT: Final = SPREAD | {Topic.POLICIES}
_TIMEOUT_S: Final = 10.0
_BATCH_OVERHEAD_BYTES: Final = 1 << 16  # headers, keys and what compression may add
_FOR_EVER: Final = "-1"
_FLUSHED, _NOT_FLUSHED = "1", str((1 << 63) - 1)  # records after which the disk is waited for


def migrate(settings: KafkaSettings, partitions: int) -> None:
    """Make missing topics, and set what follows from settings.

    Raises ConfigError naming the setting at fault, also when a topic has another number of partitions, since sessions
    would move from one to another; LogUnavailable: try again."""
    with _admin(settings) as admin:
        wanted = {topic_name(settings, topic): _wanted(settings, topic, partitions) for topic in Topic}
        found = _describe(admin, list(wanted))
        faults = [fault for name in wanted if name in found for fault in _faults(name, found[name], wanted[name])]
        if faults:
            raise ConfigError("; ".join(faults))
        _create(admin, {name: topic for name, topic in wanted.items() if name not in found}, settings)
        changed = [ConfigResource("TOPIC", name, wanted[name]["configs"]) for name in found]
        if changed:
            admin.alter_configs(changed)


def _create(admin: Any, topics: Mapping[str, Any], settings: KafkaSettings) -> None:
    if not topics:
        return
    for made in admin.create_topics(dict(topics), raise_errors=False)["topics"]:
        error = for_code(made["error_code"])
        if error is InvalidReplicationFactorError:
            raise ConfigError(
                f"kafka.topics.replication_factor is {settings.topics.replication_factor}: {made['error_message']}"
            )
        if error not in (NoError, TopicAlreadyExistsError):  # another may have been quicker
            raise ConfigError(f"topic {made['name']} (kafka.prefix is {settings.prefix!r}): {made['error_message']}")
    admin.wait_for_topics(list(topics))


def check(settings: KafkaSettings) -> str:
    """Return a line about each topic. Raises ConfigError saying what is wrong, with the setting; LogUnavailable."""
    with _admin(settings) as admin:
        names = [topic_name(settings, topic) for topic in Topic]
        found = _describe(admin, names)
        missing = [name for name in names if name not in found]
        if missing:
            raise ConfigError(
                f"no topics {', '.join(missing)} (kafka.prefix is {settings.prefix!r}): run `onward migrate`"
            )
        partitions = len(found[topic_name(settings, Topic.TURNS)]["partitions"])
        faults = [
            fault
            for topic, name in zip(Topic, names, strict=True)
            for fault in [
                *_faults(name, found[name], _wanted(settings, topic, partitions)),
                *_differences(admin, name, _wanted(settings, topic, partitions)["configs"]),
            ]
        ]
        if not settings.topics.flushes and settings.topics.min_insync_replicas == 1:
            faults.append(_may_lose(names))
        if faults:
            raise ConfigError("; ".join(faults))
        cluster = admin.describe_cluster()
        return f"{len(cluster['brokers'])} brokers, {len(found)} topics, turns in {partitions} partitions"


def _may_lose(names: Iterable[str]) -> str:
    return (
        f"topics {', '.join(names)}: one replica acknowledges (kafka.topics.min_insync_replicas), and "
        "kafka.topics.flush is false: what was acknowledged is lost with its host. Let them flush, or have 3 replicas "
        "of which 2 must have a record"
    )


def _wanted(settings: KafkaSettings, topic: Topic, partitions: int) -> dict[str, Any]:
    kept_ms = str(int(1000 * settings.topics.retention_s))
    configs = {
        "max.message.bytes": str(settings.topics.max_record_bytes + _BATCH_OVERHEAD_BYTES),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(settings.topics.min_insync_replicas),
        "flush.messages": _FLUSHED if settings.topics.flushes else _NOT_FLUSHED,
        "unclean.leader.election.enable": "false",  # what was acknowledged is more than being there
    }
    if topic is Topic.RELEASES:
        configs |= {"cleanup.policy": "compact", "min.compaction.lag.ms": kept_ms}
    else:
        kept_ms = _FOR_EVER if topic in _KEPT else kept_ms
        configs |= {"cleanup.policy": "delete", "retention.ms": kept_ms, "retention.bytes": _FOR_EVER}
    return {
        "num_partitions": partitions if topic in SPREAD else 1,
        "replication_factor": settings.topics.replication_factor,
        "configs": configs,
    }


def _describe(admin: Any, names: list[str]) -> dict[str, Any]:
    there = set(admin.list_topics())
    wanted = [name for name in names if name in there]
    return {topic["name"]: topic for topic in admin.describe_topics(wanted)} if wanted else {}


def _faults(name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Return what is wrong and cannot be changed any more."""
    count, expected = len(found["partitions"]), wanted["num_partitions"]
    if count != expected:
        where = f"ingest.partitions is {expected}" if expected > 1 else "it is to have 1"
        yield f"topic {name} has {count} partitions, {where}: set that, or take another kafka.prefix"
    replicas = min((len(partition["replica_nodes"]) for partition in found["partitions"]), default=0)
    if replicas < wanted["replication_factor"]:
        yield f"topic {name} has {replicas} replicas, kafka.topics.replication_factor is {wanted['replication_factor']}"


def _differences(admin: Any, name: str, wanted: Mapping[str, str]) -> Iterator[str]:
    """Return what `migrate` would change."""
    described = admin.describe_configs([ConfigResource("TOPIC", name)], config_filter="all")["topic"][name]
    for key, value in wanted.items():
        if described[key]["value"] != value:
            yield f"topic {name} has {key}={described[key]['value']}, not {value}: run `onward migrate`"


@contextmanager
def _admin(settings: KafkaSettings) -> Iterator[Any]:
    """Return an admin client.

    Raises LogUnavailable when no broker answers, ConfigError naming the settings when brokers refuse the login."""
    try:
        admin = connected(settings, KafkaAdminClient, **options(settings, _TIMEOUT_S))
        try:
            with explained():
                yield admin
        finally:
            admin.close()
    except LogUnavailable as error:
        raise LogUnavailable(f"kafka.bootstrap_servers, kafka.security.protocol: {error}") from error
    except LogError as error:
        raise ConfigError(f"kafka.security.protocol, kafka.security.sasl_*, kafka.security.ssl_*: {error}") from error
