"""Apache Kafka: one broker that is its own controller (KRaft)."""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from deploy.services.maven import KAFKA
from deploy.services.programs import path_of
from deploy.services.server import Server, ServiceError, spawn


class Broker(Server):
    """One Kafka broker.

    `properties` are set over those of the file below; `listeners` are further ones, each with its protocol, and a
    port of that name."""

    name = "kafka"

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory)
        self._listeners = dict(listeners or {})
        self.port_names = ("port", "controller", *self._listeners)
        self._file = self.directory / "server.properties"
        self._data = self.directory / "data"
        self._properties = dict(properties or {})

    def prepare(self) -> None:
        KAFKA.fetch()
        lines = {**_FIXED, **self._addresses(), "log.dirs": str(self._data), **self._properties}
        self._file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (self._data / "meta.properties").exists():
            self._format()

    def _addresses(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self.ports['controller']}"
        clients = [f"PLAINTEXT://{self.address}"]
        clients += [f"{name}://127.0.0.1:{self.ports[name]}" for name in self._listeners]
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._listeners}
        return {
            "listeners": ",".join([*clients, f"CONTROLLER://{controller}"]),
            "advertised.listeners": ",".join(clients),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "controller.quorum.voters": f"1@{controller}",
        }

    def _format(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # left by a formatting that was cut off
        done = subprocess.run(
            [
                *_java("error"),
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={_cluster_id()}",
                "-c",
                str(self._file),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServiceError(f"Kafka's storage could not be made:\n{done.stdout}{done.stderr}")

    def spawn(self) -> int:
        command = [*_java("warn"), "kafka.Kafka", str(self._file)]
        return spawn(command, self.log)

    def mark(self) -> str:
        return f"kafka.Kafka {self._file}"


def _cluster_id() -> str:
    """Return a UUID in Kafka's own form.

    It may start with a hyphen, so it is given as `--cluster-id=…` and never as a word of its own, which would read
    as an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _java(level: str) -> list[str]:
    memory = ["-Xmx512m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [
        path_of("java"),
        *memory,
        f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}",
        "-cp",
        f"{KAFKA.directory}/*",
    ]


_FIXED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",  # topics have settings: `onward migrate` makes them
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
