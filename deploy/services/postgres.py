"""PostgreSQL: one cluster with user and database `onward`, which trusts every client on 127.0.0.1."""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.services.programs import path_of
from deploy.services.server import Server, ServiceError


class Postgres(Server):
    """A PostgreSQL server.

    It refuses to run as root, so that for root it runs as `postgres` or `nobody`. `fsync=False` is for tests only."""

    name = "postgres"
    stop_signal = signal.SIGINT  # does not wait for clients

    def __init__(self, directory: Path, fsync: bool = True) -> None:
        super().__init__(directory)
        self._fsync = fsync
        self._data = self.directory / "data"

    @property
    def url(self) -> str:
        return self.url_of("onward")

    def url_of(self, database: str) -> str:
        return f"postgresql://onward@{self.address}/{database}"

    def prepare(self) -> None:
        self.log.touch()
        user = _user()
        if user is not None:
            for path in (self.directory, self.log):
                shutil.chown(path, user)
            self._require_way_in(user)
        if not (self._data / "PG_VERSION").exists():
            shutil.rmtree(self._data, ignore_errors=True)
            self._run("initdb", "-U", "onward", "--auth=trust", "--no-sync", "-E", "UTF8", "--no-locale")

    def _require_way_in(self, user: str) -> None:
        if subprocess.run([*_as(user), "test", "-x", str(self.directory)], check=False, cwd="/").returncode:
            raise ServiceError(f"PostgreSQL runs as {user}, who may not enter {self.directory}: choose another DIR")

    def spawn(self) -> int:
        options = f"-p {self.ports['port']} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        options += " -c max_connections=300"
        if not self._fsync:
            options += " -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        self._run("pg_ctl", "-w", "-l", str(self.log), "-o", options, "start")
        self.make_database("onward")
        return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])

    def make_database(self, name: str) -> None:
        """Create the database unless it exists."""
        where = ["-h", "127.0.0.1", "-p", str(self.ports["port"]), "-U", "onward"]
        query = f"SELECT 1 FROM pg_database WHERE datname = '{name}'"
        asked = [path_of("psql"), *where, "-d", "postgres", "-Atc", query]
        if not subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip():
            subprocess.run([path_of("createdb"), *where, name], check=True)

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [*_as(_user()), path_of(program), "-D", str(self._data), *arguments]
        output = self.directory / f"{program}.out"  # a file: the server inherits it, a pipe would never end
        with output.open("w") as sink:
            done = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, check=False, cwd="/")
        if done.returncode:
            raise ServiceError(f"{program} failed:\n{output.read_text()}{self.log.read_text()[-2000:]}")

    def mark(self) -> str:
        return f"-D {self._data}"


def _user() -> str | None:
    """Return the user to run as, or None when we are not root."""
    if os.geteuid() != 0:
        return None
    return "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"


def _as(user: str | None) -> list[str]:
    return [] if user is None else ["runuser", "-u", user, "--"]
