"""Redis, with its append-only file."""

from deploy.services.programs import path_of
from deploy.services.server import Server, spawn


class Redis(Server):
    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def prepare(self) -> None:
        """Do nothing: Redis makes what it needs."""

    def spawn(self) -> int:
        flags = ["--port", str(self.ports["port"]), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        title = ["--proc-title-template", f"{{title}} {self.address}"]  # from its start on: `mark` must find it
        command = [path_of("redis-server"), *flags, "--appendonly", "yes", "--save", "", *title]
        return spawn(command, self.log)

    def mark(self) -> str:
        return self.address
