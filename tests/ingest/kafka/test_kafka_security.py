"""Kafka over TLS, with user name and password."""

import gc
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from changed_settings import changed
from kafka_world import PARTITIONS, open_log, read
from services import require_broker
from waiting import wait_for

from core.errors import ConfigError, LogError, LogUnavailable
from core.events import SessionEnded, Topic
from core.ids import Namespace, SessionId
from core.settings import KafkaClientSettings, KafkaSecuritySettings, KafkaSettings
from ingest.kafka.log import KafkaEventLog
from ingest.kafka.topics import check, migrate

# kafka-python leaves the sockets of handshakes that failed to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_onward="secret";'
EVENT = SessionEnded(session_id=SessionId("s"), namespace=Namespace("n"), received_at=datetime(2026, 3, 1, tzinfo=UTC))


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate; return (the file with key and certificate, the authority's file)."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program")
    key, shown = directory / "key.pem", directory / "cert.pem"
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, *made, *names, "-keyout", str(key), "-out", str(shown)]
    subprocess.run(command, check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_text(key.read_text() + shown.read_text())
    return both, shown


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    directory = tmp_path_factory.mktemp("secure")
    both, authority = certificate(directory)
    broker = require_broker(
        directory / "kafka",
        {
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.outside.plain.sasl.jaas.config": LOGIN,
            "listener.name.outside.ssl.keystore.type": "PEM",
            "listener.name.outside.ssl.keystore.location": str(both),
        },
        {"OUTSIDE": "SASL_SSL"},
    )
    yield KafkaSettings(
        bootstrap_servers=(f"127.0.0.1:{broker.ports['OUTSIDE']}",),
        security=KafkaSecuritySettings(
            protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="onward",
            sasl_password="secret",
            ssl_cafile=authority,
        ),
        client=KafkaClientSettings(delivery_timeout_s=3.0),
    )
    broker.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_who_is_known_reads_and_appends(settings: KafkaSettings) -> None:
    patient = changed(settings, {"client.delivery_timeout_s": 60.0})
    migrate(patient, PARTITIONS)
    check(patient)
    log = open_log(patient)
    log.append_blocking(Topic.TURNS, [EVENT])
    member, reader = log.consumer("group", [Topic.TURNS]), log.reader([Topic.TURNS])
    assert [record.event for record in read(reader, 1) + read(member, 1)] == [EVENT, EVENT]
    member.close()
    reader.close()
    log.close()


PLAIN = {
    "security.protocol": "PLAINTEXT",
    **dict.fromkeys(("security.sasl_mechanism", "security.sasl_username", "security.sasl_password")),
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"security.sasl_password": "guessed"}, r"kafka\.security\.protocol.*(Authentication failed|over SASL_SSL)"),
        ({"security.ssl_cafile": None}, r"kafka\.security\.ssl_\*.*certificate verify failed"),
        (PLAIN, r"kafka\.bootstrap_servers.*over PLAINTEXT"),
    ],
    ids=["password", "authority", "protocol"],
)
def test_who_is_not_known_is_told_why(settings: KafkaSettings, changes: dict[str, object], named: str) -> None:
    wrong = changed(settings, changes)
    with pytest.raises((ConfigError, LogUnavailable), match=named):
        check(wrong)
    log = KafkaEventLog(wrong)
    wait_for(lambda: why(log) != "Kafka: not connected yet")
    assert re.search(named.split(".*")[1], why(log))
    with pytest.raises((LogUnavailable, LogError)):
        log.consumer("group", [Topic.TURNS]).poll(1, 0.0)
    log.close()


def why(log: KafkaEventLog) -> str:
    with pytest.raises(LogUnavailable) as caught:
        log.append_blocking(Topic.TURNS, [EVENT])
    return str(caught.value)
