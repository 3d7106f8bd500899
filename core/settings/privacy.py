"""What is replaced in the words of users before anything of them is stored."""

from typing import Annotated, Literal

from pydantic import Field

from core.section import Section

Redactable = Literal["secrets", "pii"]
Purposes = dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")], Annotated[str, Field(min_length=1)]]


class NamespacePrivacySettings(Section):
    """A namespace's own rules; None: as for all."""

    redact: tuple[Redactable, ...] | None = None
    """What is replaced by placeholders; an empty list: nothing."""
    restore: bool | None = None
    """Whether answers get the values back."""
    purposes: Purposes | None = None
    """What the namespace's turns are processed for."""


class PrivacySettings(Section):
    redact: tuple[Redactable, ...] = ()
    """What is replaced by placeholders before the model sees it: `secrets` (keys, tokens, passwords), `pii` (names,
    addresses, and numbers by which people are found). Empty: nothing."""
    restore: bool = True
    """Whether answers to the client have the values again where the model wrote their placeholders."""
    purposes: Purposes = Field(default={})
    """What turns are processed for: the name of each purpose, as turns give it, and the purpose in words. Where there
    are any, a turn that gives another is refused."""
    namespaces: dict[Annotated[str, Field(min_length=1)], NamespacePrivacySettings] = Field(default={})
    """Other rules for a namespace, by its name."""

    def redacted_in(self, namespace: str) -> tuple[Redactable, ...]:
        own = self.namespaces.get(namespace)
        return self.redact if own is None or own.redact is None else own.redact

    def restores_in(self, namespace: str) -> bool:
        own = self.namespaces.get(namespace)
        return self.restore if own is None or own.restore is None else own.restore

    def purposes_in(self, namespace: str) -> Purposes:
        own = self.namespaces.get(namespace)
        return self.purposes if own is None or own.purposes is None else own.purposes
