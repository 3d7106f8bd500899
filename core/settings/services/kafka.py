"""Apache Kafka, the log of mode `distributed`."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from core.section import Section

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


class KafkaSecuritySettings(Section):
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The protocol for connections to brokers."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """With one of the SASL protocols."""
    sasl_username: str | None = None
    """For SASL."""
    sasl_password: str | None = Field(default=None, repr=False)
    """For SASL; better in the environment than in the file."""
    ssl_cafile: Path | None = None
    """Authorities that brokers' certificates may be of; None: the system's."""
    ssl_certfile: Path | None = None
    """Our own certificate, where brokers ask for one."""
    ssl_keyfile: Path | None = None
    """Its key."""
    ssl_check_hostname: bool = True
    """Whether a broker's certificate must name its host."""

    @model_validator(mode="after")
    def _has_credentials_for_sasl(self) -> Self:
        uses_sasl = self.protocol.startswith("SASL")
        credentials = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if uses_sasl and None in credentials:
            raise ValueError(f"{self.protocol} needs sasl_mechanism, sasl_username and sasl_password")
        if not uses_sasl and credentials != (None, None, None):
            raise ValueError(f"sasl_mechanism, sasl_username and sasl_password go with SASL, not {self.protocol}")
        return self


class KafkaTopicSettings(Section):
    replication_factor: int = Field(default=1, ge=1)
    """Replicas of the topics that `onward migrate` makes; three on a cluster of three and more."""
    min_insync_replicas: int = Field(default=1, ge=1)
    """Replicas that must have a record before it is acknowledged."""
    flush: bool | None = None
    """Whether brokers write each record to their disk before it is acknowledged. None: where one replica suffices for
    that, whose host may be lost with what it had in memory."""
    retention_s: float = Field(default=30 * 86400.0, gt=0)
    """Age at which brokers may drop alarms, dead letters and steps of releases that later ones replaced. Turns and
    rewards are deleted by `archive.retention_days`."""
    max_record_bytes: int = Field(default=8 << 20, ge=1 << 16)
    """Largest record; larger ones are refused before they are sent."""

    @property
    def flushes(self) -> bool:
        return self.min_insync_replicas == 1 if self.flush is None else self.flush

    @model_validator(mode="after")
    def _can_be_appended_to(self) -> Self:
        if self.min_insync_replicas > self.replication_factor:
            raise ValueError("min_insync_replicas is more than replication_factor: nothing could be appended")
        return self


class KafkaClientSettings(Section):
    buffer_bytes: int = Field(default=64 << 20, ge=1 << 20)
    """Most bytes on their way to the brokers; beyond it appends treat the log as unavailable."""
    linger_s: float = Field(default=0.005, ge=0)
    """How long a record waits for others to share its request."""
    delivery_timeout_s: float = Field(default=5.0, gt=0)
    """How long an append may take before the log counts as unavailable."""
    session_timeout_s: float = Field(default=10.0, gt=0)
    """A group's member that has said nothing for so long is gone."""
    max_poll_interval_s: float = Field(default=120.0, gt=0)
    """A member that does not come back for records for so long is gone."""

    @model_validator(mode="after")
    def _delivers_after_it_lingers(self) -> Self:
        if self.delivery_timeout_s <= self.linger_s:
            raise ValueError("delivery_timeout_s must be more than linger_s")
        return self


class KafkaSettings(Section):
    bootstrap_servers: tuple[str, ...] = ("127.0.0.1:9092",)
    """Brokers to ask first, as HOST:PORT."""
    prefix: str = Field(default="", pattern=r"^[a-zA-Z0-9._-]*$")
    """Put before the names of topics and groups: several installations share one cluster."""
    security: KafkaSecuritySettings = KafkaSecuritySettings()
    """The protocol and the credentials for the brokers."""
    topics: KafkaTopicSettings = KafkaTopicSettings()
    """Retention and replication of the topics."""
    client: KafkaClientSettings = KafkaClientSettings()
    """Time limits of requests to the brokers."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_addresses(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [server for server in servers if not _ADDRESS.fullmatch(server)]
        if wrong or not servers:
            raise ValueError(f"HOST:PORT is wanted, not {', '.join(map(repr, wrong)) or 'nothing'}")
        return servers
