"""The places of a request that hold words, in order: in fields, in lists, and in JSON within a text."""

import json
from typing import Any, Final

from api.redaction.redaction import Redaction
from core.errors import InvalidRequest

_MOST_DEPTH: Final = 64
_SHORTEST_KEY: Final = 8  # characters of a key that might be more than a name


class RedactedTexts:
    """Texts to redact: `add` them in the order of the conversation, then `redact` all at once."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._holders: list[tuple[Any, Any]] = []
        self._written: list[tuple[Any, Any, Any, int, int]] = []
        self._names: list[tuple[str, str]] = []
        self._keyed: list[dict[str, Any]] = []

    def add(self, holder: Any, name: str | int) -> None:
        """Add a field or an item, if it is a text or holds texts."""
        value = _get(holder, name)
        if isinstance(value, str):
            self._holders.append((holder, name))
            self._texts.append(value)
        elif isinstance(value, dict | list):
            self._walk(value, 0)

    def add_json(self, holder: Any, name: str) -> None:
        """Add a field that holds JSON: its texts as they read; what is no JSON is a text like others."""
        written = _get(holder, name)
        if "\\" not in written and "{" not in written[1:]:  # then nothing in it reads otherwise than it is written
            self.add(holder, name)
            return
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict | list):
            self.add(holder, name)
            return
        start = len(self._texts)
        self._walk(value, 0)
        self._written.append((holder, name, value, start, len(self._texts)))

    def name(self, name: str, param: str) -> None:
        """Add a name that is looked up, and so cannot be replaced: it must have the form of no secret."""
        self._names.append((name, param))

    def redact(self, redaction: Redaction) -> None:
        """Redact all of it in place. Raises InvalidRequest for a name that would have to be."""
        for name, param in self._names:
            if redaction.finder.find_forms(name):
                why = "it has the form of a secret, which this service does not take as a name"
                raise InvalidRequest(f"{param}: {why}", param=param, code="redacted_name")
        redacted = redaction.all(self._texts)
        for (holder, name), before, after in zip(self._holders, self._texts, redacted, strict=True):
            if after is not before:
                _set(holder, name, after)
        renamed = [_rename(keyed, redaction) for keyed in reversed(self._keyed)]
        for holder, name, value, start, end in self._written:
            if self._texts[start:end] != redacted[start:end] or any(renamed):
                _set(holder, name, json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def _walk(self, value: dict[str, Any] | list[Any], depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise InvalidRequest(f"nested more than {_MOST_DEPTH} deep", code="invalid_field")
        if isinstance(value, dict) and any(len(key) >= _SHORTEST_KEY for key in value):
            self._keyed.append(value)
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(each, dict | list):
                self._walk(each, depth + 1)
            elif isinstance(each, str):
                self._holders.append((value, key))
                self._texts.append(each)


def _get(holder: Any, name: str | int) -> Any:
    if isinstance(holder, dict):
        return holder[name]
    return holder[name] if isinstance(holder, list) and isinstance(name, int) else getattr(holder, str(name))


def _set(holder: Any, name: str | int, text: str) -> None:
    if isinstance(holder, dict) or (isinstance(holder, list) and isinstance(name, int)):
        holder[name] = text  # type: ignore[index]  # a list has whole numbers
    else:
        setattr(holder, str(name), text)


def _rename(keyed: dict[str, Any], redaction: Redaction) -> bool:
    """Redact the keys of an object in place, in their order, and return whether there was anything to redact."""
    items = [(redaction.text(key) if len(key) >= _SHORTEST_KEY else key, value) for key, value in keyed.items()]
    if [key for key, _ in items] == list(keyed):
        return False
    keyed.clear()
    keyed.update(items)
    return True
