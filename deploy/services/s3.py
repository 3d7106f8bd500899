"""A server of S3's API over a folder: S3Proxy (https://github.com/gaul/s3proxy). Buckets are folders in `data`."""

import secrets
from pathlib import Path

from deploy.services.maven import S3PROXY
from deploy.services.programs import path_of
from deploy.services.server import Server, spawn


class S3(Server):
    name = "s3"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def environment(self) -> dict[str, str]:
        """What every client of S3 reads (AWS's own names)."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.name,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            # Checksums in trailers are newer than this server, and than many others.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }

    @property
    def _secret(self) -> str:
        return (self.directory / "secret").read_text()

    def make_bucket(self, name: str) -> None:
        (self.directory / "data" / name).mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        S3PROXY.fetch()
        secret = self.directory / "secret"
        if not secret.exists():
            secret.touch(0o600)
            secret.write_text(secrets.token_hex(16))
        (self.directory / "data").mkdir(exist_ok=True)
        lines = {
            "s3proxy.endpoint": self.url,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.name,
            "s3proxy.credential": self._secret,
            # `filesystem-nio2` leaves objects out of a listing while others are written beside them; S3 never does.
            "jclouds.provider": "filesystem",
            "jclouds.filesystem.basedir": str(self.directory / "data"),
            "jclouds.identity": self.name,
            "jclouds.credential": self._secret,
        }
        self._logging.write_text(_LOGGING)
        self._file.touch(0o600)
        self._file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def spawn(self) -> int:
        memory = ["-Xmx192m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = f"-Dlogback.configurationFile={self._logging}"
        program = ["-cp", f"{S3PROXY.directory}/*", "org.gaul.s3proxy.Main", "--properties", str(self._file)]
        return spawn([path_of("java"), *memory, logging, *program], self.log)

    def mark(self) -> str:
        return f"org.gaul.s3proxy.Main --properties {self._file}"

    @property
    def _logging(self) -> Path:
        return self.directory / "logback.xml"

    @property
    def _file(self) -> Path:
        return self.directory / "s3proxy.conf"


_LOGGING = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""
