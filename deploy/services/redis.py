"""Redis, with its append-only file."""

from collections.abc import Sequence

from deploy.services.programs import path_of
from deploy.services.server import Server


class Redis(Server):
    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def prepare(self) -> None:
        """Redis makes what it needs."""

    def command(self) -> Sequence[str]:
        flags = ["--port", str(self.ports["port"]), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        title = ["--proc-title-template", f"{{title}} {self.address}"]  # named from its start on, not only later
        return [path_of("redis-server"), *flags, "--appendonly", "yes", "--save", "", *title]

    def mark(self) -> str:
        return self.address
