"""Topics are made once, refused when they differ from the settings, and compacted without harm."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from changed_settings import changed
from kafka.admin import ConfigResource
from kafka_world import PARTITIONS, admin_of, open_log, topics_of_our_own
from services import require_broker, require_services

from core.errors import ConfigError, LogUnavailable
from core.events import Event, Release, ReleaseState, SessionEnded, Topic
from core.ids import Namespace, PolicyRef, SessionId, base_ref
from core.ports import TopicPartition
from core.settings import KafkaSettings, load_settings
from ingest.kafka.clients import topic_name
from ingest.kafka.log import KafkaEventLog
from ingest.kafka.topics import check, migrate
from ingest.routing import partition_of
from learner.versions.lineage import Lineage

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def settings() -> Iterator[KafkaSettings]:
    with topics_of_our_own(require_services().kafka) as made:
        yield made


def described(settings: KafkaSettings, topic: Topic) -> dict[str, Any]:
    name = topic_name(settings, topic)
    with admin_of(settings) as admin:
        configs = admin.describe_configs([ConfigResource("TOPIC", name)], config_filter="all")["topic"][name]
        partitions = admin.describe_topics([name])[0]["partitions"]
    return {"partitions": len(partitions)} | {key: config["value"] for key, config in configs.items()}


def wait_until_described(settings: KafkaSettings, topic: Topic, key: str, value: object) -> None:
    """Wait until the broker that is asked has heard of the change."""
    deadline_s = time.monotonic() + 120
    while (found := described(settings, topic)[key]) != value:
        assert time.monotonic() < deadline_s, f"{key} is {found}"


def test_topics_are_what_is_promised(settings: KafkaSettings) -> None:
    turns, releases = described(settings, Topic.TURNS), described(settings, Topic.RELEASES)
    assert (turns["partitions"], releases["partitions"]) == (PARTITIONS, 1)
    assert (turns["cleanup.policy"], releases["cleanup.policy"]) == ("delete", "compact")
    alarms = described(settings, Topic.ALARMS)
    assert alarms["retention.ms"] == str(30 * 86400 * 1000) == releases["min.compaction.lag.ms"]
    for kept in (Topic.TURNS, Topic.REWARDS, Topic.POLICIES):
        assert described(settings, kept)["retention.ms"] == "-1"
    assert int(turns["max.message.bytes"]) > settings.topics.max_record_bytes
    assert turns["message.timestamp.type"] == "LogAppendTime"
    assert turns["unclean.leader.election.enable"] == "false"


def test_migrating_again_changes_nothing_but_what_settings_changed(settings: KafkaSettings) -> None:
    migrate(settings, PARTITIONS)
    assert "6 topics, turns in 4 partitions" in check(settings)
    shorter = changed(settings, {"topics.retention_s": 3600.0})
    with pytest.raises(ConfigError, match=r"retention\.ms=2592000000, not 3600000: run `onward migrate`"):
        check(shorter)
    migrate(shorter, PARTITIONS)
    wait_until_described(settings, Topic.ALARMS, "retention.ms", "3600000")
    assert described(settings, Topic.TURNS)["retention.ms"] == "-1"
    check(shorter)


def test_one_replica_flushes_and_more_need_not(settings: KafkaSettings) -> None:
    """An acknowledged record has to survive a crash of the host that has the only replica."""
    assert {described(settings, topic)["flush.messages"] for topic in Topic} == {"1"}
    assert not changed(settings, {"topics.replication_factor": 3, "topics.min_insync_replicas": 2}).topics.flushes
    careless = changed(settings, {"topics.flush": False})
    with pytest.raises(ConfigError, match=r"flush\.messages=1, not 9223372036854775807: run `onward migrate`"):
        check(careless)
    migrate(careless, PARTITIONS)
    for topic in Topic:
        wait_until_described(settings, topic, "flush.messages", "9223372036854775807")
    with pytest.raises(ConfigError, match=r"onward\.turns.*kafka\.topics\.min_insync_replicas.*lost with its host"):
        check(careless)
    with pytest.raises(ConfigError, match=r"flush\.messages=9223372036854775807, not 1: run `onward migrate`"):
        check(settings)


@pytest.mark.parametrize("partitions", [PARTITIONS - 1, 2 * PARTITIONS])
def test_other_partitions_are_refused(settings: KafkaSettings, partitions: int) -> None:
    with pytest.raises(ConfigError, match=rf"onward\.turns has 4 partitions, ingest\.partitions is {partitions}"):
        migrate(settings, partitions)


def test_a_topic_with_fewer_replicas_is_refused(settings: KafkaSettings) -> None:
    three = changed(settings, {"topics.replication_factor": 3})
    with pytest.raises(ConfigError, match=r"onward\.turns has 1 replicas, kafka\.topics\.replication_factor is 3"):
        migrate(three, PARTITIONS)
    elsewhere = three.model_copy(update={"prefix": f"{settings.prefix}three-"})
    with pytest.raises(ConfigError, match=r"kafka\.topics\.replication_factor is 3: .*only 1 broker"):
        migrate(elsewhere, PARTITIONS)


def test_missing_topics_and_wrong_addresses_are_named() -> None:
    there = KafkaSettings(bootstrap_servers=require_services().kafka, prefix="nobody-made-these-")
    with pytest.raises(ConfigError, match=r"no topics nobody-made-these-onward\.turns.*onward migrate"):
        check(there)
    nowhere = KafkaSettings(bootstrap_servers=("127.0.0.1:1",))
    for look in (check, lambda settings: migrate(settings, 4)):
        with pytest.raises(LogUnavailable, match=r"kafka\.bootstrap_servers, .*127\.0\.0\.1:1: .*refused"):
            look(nowhere)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"bootstrap_servers": ["kafka"]}, "HOST:PORT"),
        ({"bootstrap_servers": []}, "HOST:PORT"),
        ({"security.protocol": "SASL_SSL", "security.sasl_mechanism": "PLAIN"}, "sasl_password"),
        ({"security.sasl_username": "onward"}, "go with SASL, not PLAINTEXT"),
        ({"topics.min_insync_replicas": 2}, "replication_factor"),
        ({"client.linger_s": 9.0}, "delivery_timeout_s"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    file = tmp_path / "onward.toml"
    file.write_text("[kafka]\n" + "".join(f"{key} = {value!r}\n" for key, value in values.items()))
    with pytest.raises(ConfigError, match=named):
        load_settings(file, {})


def test_releases_say_the_same_after_compaction(tmp_path: Path) -> None:
    """Reading from the beginning still shows which version is live and which were refused."""
    broker = require_broker(tmp_path / "kafka", {"log.cleaner.backoff.ms": "100"})
    try:
        with topics_of_our_own([broker.address]) as settings:
            name = topic_name(settings, Topic.RELEASES)
            eager = {"min.compaction.lag.ms": "0", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.0"}
            with admin_of(settings) as admin:
                admin.alter_configs([ConfigResource("TOPIC", name, eager)])
            log = open_log(settings)
            chain = [release(version, state) for version, state in CHAIN]
            for step in chain:
                log.append_blocking(Topic.RELEASES, [step])
            left = chain
            number, deadline_s = 1000, time.monotonic() + 120.0
            while len(left) > len({step.version for step in chain}) and time.monotonic() < deadline_s:
                number += 1
                log.append_blocking(Topic.RELEASES, [release(number, "candidate")])  # segments roll at an append
                left = [step for step in read_releases(log) if step.version < base_ref(1000)]
            log.close()
    finally:
        broker.kill()
    assert len(left) == len({step.version for step in chain}) < len(chain)
    assert followed(left) == followed(chain) == (base_ref(2), {base_ref(3), base_ref(5)})


CHAIN: list[tuple[int, ReleaseState]] = [
    (1, "live"),
    (2, "candidate"),
    (2, "canary"),
    (2, "live"),
    (1, "superseded"),
    (3, "candidate"),
    (3, "live"),
    (2, "superseded"),
    (3, "rolled_back"),
    (2, "live"),
    (4, "candidate"),
    (5, "candidate"),
    (4, "superseded"),
    (5, "rejected"),
]


def release(version: int, state: ReleaseState) -> Release:
    return Release(version=base_ref(version), cluster="c", state=state, why="", by="gate", at=NOW)


def followed(steps: list[Release]) -> tuple[PolicyRef | None, set[PolicyRef]]:
    lineage = Lineage()
    for step in steps:
        lineage.follow(step)
    return lineage.live, set(lineage.refused)


def read_releases(log: KafkaEventLog) -> list[Release]:
    reader = log.reader([Topic.RELEASES])
    events: list[Event | None] = []
    while any(reader.position(source) < log.end(source) for source in reader.assignment()):
        events += [record.event for record in reader.poll(500, 0.2)]
    reader.close()
    return [event for event in events if isinstance(event, Release)]


def test_a_changed_partition_count_stops_appends(settings: KafkaSettings) -> None:
    log = open_log(settings)
    event = SessionEnded(session_id=SessionId("s"), namespace=Namespace("n"), received_at=NOW)
    log.append_blocking(Topic.TURNS, [event])
    with admin_of(settings) as admin:
        admin.create_partitions({topic_name(settings, Topic.TURNS): 2 * PARTITIONS})
    wait_until_described(settings, Topic.TURNS, "partitions", 2 * PARTITIONS)
    with pytest.raises(ConfigError, match=r"onward\.turns has 8 partitions, ingest\.partitions is 4"):
        migrate(settings, PARTITIONS)
    assert log.partitions(Topic.TURNS) == PARTITIONS
    log.append_blocking(Topic.TURNS, [event])  # where its session is
    assert log.end(TopicPartition(Topic.TURNS, partition_of(event, PARTITIONS))) == 2
    log.close()
