"""Kafka, PostgreSQL and Redis together in one directory."""

import fcntl
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.services.broker import Broker
from deploy.services.postgres import Postgres
from deploy.services.programs import PACKAGES, require
from deploy.services.redis import Redis
from deploy.services.server import Server

DEFAULT = Path(__file__).parents[2] / "build" / "services"


class Stack:
    """The three servers.

    `up` starts those that do not run and leaves in the directory `services.env`, the settings that lead to them, and
    `services.json`, the same addresses for programs."""

    def __init__(self, directory: Path = DEFAULT, fsync: bool = True) -> None:
        self.directory = directory.resolve()
        self.kafka = Broker(self.directory / "kafka")
        self.postgres = Postgres(self.directory / "postgres", fsync)
        self.redis = Redis(self.directory / "redis")
        self.servers: tuple[Server, ...] = (self.kafka, self.postgres, self.redis)

    @property
    def alive(self) -> bool:
        return all(server.alive for server in self.servers)

    def addresses(self) -> dict[str, str]:
        return {"kafka": self.kafka.address, "postgres": self.postgres.url, "redis": self.redis.url}

    def settings(self, database: str) -> dict[str, str]:
        """Return the addresses as environment variables of `onward`."""
        return {
            "ONWARD_KAFKA__BOOTSTRAP_SERVERS": json.dumps([self.kafka.address]),
            "ONWARD_POSTGRES__URL": self.postgres.url_of(database),
            "ONWARD_REDIS__URL": self.redis.url,
        }

    def fresh(self) -> str:
        """Return settings of a service that shares nothing with others here: a database and prefixes of its own."""
        name = f"onward_{uuid.uuid4().hex[:12]}"
        self.postgres.make_database(name)
        prefixes = {"ONWARD_KAFKA__PREFIX": f"{name}.", "ONWARD_REDIS__PREFIX": f"{name}:"}
        return _lines(self.settings(name) | prefixes)

    def up(self) -> None:
        """Start all three servers and write their addresses. Raises ServiceError."""
        require(PACKAGES)
        with self._alone():
            for server in self.servers:
                server.up()
            (self.directory / "services.env").write_text(_lines(self.settings("onward")))
            (self.directory / "services.json").write_text(json.dumps(self.addresses(), indent=1))

    def down(self) -> None:
        with self._alone():
            for server in self.servers:
                server.down()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}='{value}'\n" for name, value in settings.items())  # quoted: shells read it, too
