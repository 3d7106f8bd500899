"""What is done to the words of users: replaced before they are stored, kept for a time, erased."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.section import Section
from core.settings.privacy.erasure import RetentionSettings
from core.settings.privacy.redaction import Redactable


class NamespacePrivacySettings(RetentionSettings):
    """A namespace's own; None: as for all."""

    redact: tuple[Redactable, ...] | None = None
    """What is replaced by placeholders; an empty list: nothing."""
    restore: bool | None = None
    """Whether answers get the values back."""


class PrivacySettings(Section):
    redact: tuple[Redactable, ...] = ()
    """What is replaced by placeholders before the model sees it: `secrets` (keys, tokens, passwords), `pii` (names,
    addresses, and numbers by which people are found). Empty: nothing."""
    restore: bool = True
    """Whether answers to the client have the values again where the model wrote their placeholders."""
    user_keys: Literal["off", "on"] = "on"
    """Whether what users say is sealed with a key of its session before it reaches a log that cannot be rewritten, as
    Kafka is, so that deleting the key erases it there. A log in a file is rewritten instead, and never sealed."""
    erasure_days: float = Field(default=30.0, gt=0)
    """The time within which an order to erase is to be obeyed everywhere; later it counts as overdue."""
    statement_key: Path | None = None
    """The Ed25519 key, in PEM, that signs what was erased; None: `erasure-key.pem` in the service's directory, made at
    the first use."""
    interval_s: float = Field(default=3600.0, gt=0)
    """How often is looked for what is older than it may be."""
    namespaces: dict[Annotated[str, Field(min_length=1)], NamespacePrivacySettings] = Field(default={})
    """Other rules for a namespace, and how long its turns are kept, by its name."""

    def redacted_in(self, namespace: str) -> tuple[Redactable, ...]:
        own = self.namespaces.get(namespace)
        return self.redact if own is None or own.redact is None else own.redact

    def restores_in(self, namespace: str) -> bool:
        own = self.namespaces.get(namespace)
        return self.restore if own is None or own.restore is None else own.restore

    @property
    def has_ages(self) -> bool:
        return any(kept.has_ages for kept in self.namespaces.values())
