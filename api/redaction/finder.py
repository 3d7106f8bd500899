"""The finder of one policy: what in a text is secret, or personal, as far as the policy asks."""

from collections.abc import Collection, Iterator
from functools import lru_cache

from api.redaction.findings import SensitiveSpan, apart
from api.redaction.forms.assigned import find_assigned, find_lots
from api.redaction.forms.table import Table
from api.redaction.personal.addresses import find_addresses
from api.redaction.personal.names import find_names
from api.redaction.personal.numbers import find_numbers
from api.redaction.placeholders import spans
from api.redaction.seen import SeenText, without
from core.settings.privacy import Redactable


@lru_cache(maxsize=1)
def _table() -> Table:
    return Table()


class Finder:
    """Thread-safe; it takes time in proportion to the text, whatever that says, since RE2 does the matching."""

    def __init__(self, redacted: Collection[Redactable]) -> None:
        self._table = _table()
        self._secrets, self._personal = "secrets" in redacted, "pii" in redacted

    def find(self, text: str) -> list[SensitiveSpan]:
        """Return what is to be redacted, in order and apart; placeholders are not."""
        seen = SeenText(text)
        found = apart(map(seen.in_text, self._find(seen)))
        return [_trimmed(text, each) for each in without(found, spans(text))] if found else found

    def find_forms(self, text: str) -> list[SensitiveSpan]:
        """Return the secrets alone that have a known form of their own."""
        seen = SeenText(text)
        return apart(map(seen.in_text, self._table.find(seen.plain))) if self._secrets else []

    def _find(self, seen: SeenText) -> Iterator[SensitiveSpan]:
        if self._secrets:
            yield from self._table.find(seen.plain)
            yield from find_assigned(seen.plain)
            yield from find_lots(seen.plain)
        if self._personal:
            yield from find_numbers(seen.plain)
            yield from find_names(seen.written)
            yield from find_addresses(seen.written)


def _trimmed(text: str, found: SensitiveSpan) -> SensitiveSpan:
    """Return the finding without the full stop, or the like, of the sentence that it ends."""
    end = found.end
    while end - found.start > 1 and text[end - 1] in ".,;:":
        end -= 1
    return SensitiveSpan(found.start, end, found.kind)
