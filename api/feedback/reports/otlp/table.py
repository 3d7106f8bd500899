"""The table of events: which of them say what a user did, and as which outcomes they count (`events.toml`)."""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from core.errors import ConfigError

SHIPPED: Final = Path(__file__).with_name("events.toml")
Value = bool | float | str
Names = tuple[str, ...]


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An outcome whose name is the attribute `by`, or else `otherwise`, and whose value is the attribute `value`."""

    by: str
    value: str
    otherwise: str


class EventSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of event; `events.toml` says what each entry means."""

    source: str
    names: Annotated[Names, Meta(min_length=1)]
    scope: str | None = None
    only: dict[str, Names] = {}
    answers: Names = ()
    tool_call: Names = ()
    conversation: Names = ()
    about: Literal["turn", "session"] = "turn"
    says: dict[str, dict[str, dict[str, Value]]] = {}
    measures: dict[str, str] = {}
    named: Named | None = None
    evidence: str | None = None
    said_by: Literal["client", "user", "environment", "judge"] = "user"

    def __post_init__(self) -> None:
        if not (self.source.isidentifier() and self.source.isascii() and self.source == self.source.lower()):
            raise ValueError(f"source: {self.source!r}: lower-case letters, digits and _")
        if not (self.says or self.measures or self.named):
            raise ValueError("it says, measures and names nothing: no outcome would come of it")
        if self.about == "session" and not self.conversation:
            raise ValueError("conversation: an event about a session names it")


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attributes of spans with ids of ours (`answers`), with its other names, and with its conversation."""

    answers: Names = ()
    names: Names = ()
    conversations: Names = ()


class EventTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    events: tuple[EventSpec, ...]
    links: LinkSpec = LinkSpec()

    def of(self, names: Collection[str]) -> list[EventSpec]:
        """Return the entries for events that have one of these names."""
        return [spec for spec in self.events if any(name in spec.names for name in names)]


def load_events(path: Path | None) -> EventTable:
    """Read the table, or the shipped one. Raises ConfigError naming the file and the entry."""
    file = SHIPPED if path is None else path
    try:
        return msgspec.convert(tomllib.loads(file.read_text()), EventTable)
    except OSError as error:
        raise ConfigError(f"settings: api.feedback.events: {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file}: {error}") from None
