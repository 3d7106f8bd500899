"""A schema as it is read: that it is one, where its references lead, and what of it nobody follows."""

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

from core.errors import ConfigError
from core.text.json_schema.values import Key, key_of
from core.text.patterns import Pattern, clients_pattern

MOST_PARTS: Final = 20_000
DEEPEST: Final = 100
_LONGEST_PATTERN: Final = 1000
_SHOWN: Final = 60  # characters
TYPES: Final = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_UNFOLLOWED: Final = ("$dynamicRef", "unevaluatedItems", "unevaluatedProperties")
_ONE: Final = frozenset(
    (*_UNFOLLOWED[1:], "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
)
_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_COUNTS: Final = frozenset(
    ("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties")
)
_NUMBERS: Final = frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"))
Part = tuple[str, Any]  # its place, and itself


class NoSchema(ValueError):
    """The value is no schema, or is larger than allowed. Names the place."""


class Document:
    """A schema document. Raises NoSchema.

    `unfollowed`: places that this reader does not support, each with the reason; the rest may still refuse a value."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.unfollowed: dict[str, str] = {}
        self._targets: dict[str, Any] = {}
        self._patterns: dict[str, Pattern | None] = {}
        self._choices: dict[int, frozenset[Key]] = {}
        self._anchors: dict[str, Any] = {}
        self._has_inner_ids = False
        references = self._read()
        for place, reference in references:
            self._targets[reference] = target = None if self._has_inner_ids else self._found(reference)
            if target is None:
                self.unfollowed[place] = f"{reference[:_SHOWN]} is not in it"

    def target(self, reference: str) -> Any:
        """Return what a reference points to; None when it leads nowhere."""
        return self._targets[reference]

    def pattern(self, source: str) -> Pattern | None:
        """Return a compiled pattern; None for one that RE2 does not support."""
        return self._patterns[source]

    def choices(self, enum: list[Any]) -> frozenset[Key]:
        return self._choices[id(enum)]

    # ------------------------------------------------------------------------------------------ reading

    def _read(self) -> list[tuple[str, str]]:
        """Every part, once, also those that only a reference leads to; the references, with their places."""
        waiting: list[tuple[str, Any, int]] = [("$", self.root, 0)]
        seen: set[int] = set()
        references: list[tuple[str, str]] = []
        while waiting:
            place, part, depth = waiting.pop()
            if isinstance(part, bool) or id(part) in seen:
                continue
            if not isinstance(part, dict):
                raise NoSchema(f"{place}: a schema is an object or a boolean")
            seen.add(id(part))
            if len(seen) > MOST_PARTS or depth > DEEPEST:
                raise NoSchema(f"{place}: more than {MOST_PARTS} parts, or nested more than {DEEPEST} deep")
            self._read_part(place, part)
            waiting += [(inner, each, depth + 1) for inner, each in _parts_of(place, part)]
            if "$ref" in part:
                references.append((f"{place}.$ref", part["$ref"]))
                if (target := self._pointed_at(part["$ref"])) is not None:
                    waiting.append((f"{place}.$ref", target, 0))
        return references

    def _read_part(self, place: str, part: dict[str, Any]) -> None:
        for keyword, argument in part.items():
            is_right = _SHAPES.get(keyword)
            if is_right is not None and not is_right(argument):
                raise NoSchema(f"{_below(place, keyword)}: {_shown(argument)} is nothing that it takes")
            if keyword in _UNFOLLOWED:
                self.unfollowed[f"{place}.{keyword}"] = "is not followed"
        self._has_inner_ids |= "$id" in part and part is not self.root
        if isinstance(part.get("$anchor"), str):
            self._anchors[part["$anchor"]] = part
        if "enum" in part:
            self._choices[id(part["enum"])] = frozenset(map(key_of, part["enum"]))
        if "pattern" in part:
            self._read_pattern(f"{place}.pattern", part["pattern"])
        for source in part.get("patternProperties", ()):
            self._read_pattern(f"{place}.patternProperties", source)

    def _read_pattern(self, place: str, source: str) -> None:
        try:
            if len(source) > _LONGEST_PATTERN:
                raise ConfigError(f"a regular expression of more than {_LONGEST_PATTERN} characters")
            self._patterns[source] = clients_pattern(source)
        except ConfigError as error:
            self._patterns[source] = None
            self.unfollowed[place] = str(error)

    # ------------------------------------------------------------------------------------------ references

    def _found(self, reference: str) -> Any:
        fragment = self._fragment(reference)
        return self._anchors.get(fragment, self._pointed_at(reference)) if fragment else self.root

    def _fragment(self, reference: str) -> str | None:
        """Return the fragment of a reference; None when it points outside the document."""
        base, _, fragment = reference.partition("#")
        own = self.root.get("$id", "") if isinstance(self.root, dict) else ""
        return unquote(fragment) if base in ("", str(own).partition("#")[0]) else "//"

    def _pointed_at(self, reference: str) -> Any:
        """Return the value at a JSON pointer."""
        fragment = self._fragment(reference)
        if not fragment:
            return self.root
        head, *steps = fragment.split("/")
        part = None if head else self.root
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list) and name.isdecimal() and len(name) < 10 and int(name) < len(part):
                part = part[int(name)]
            else:
                part = part.get(name) if isinstance(part, dict) else None
        return part


def _parts_of(place: str, part: dict[str, Any]) -> Iterator[Part]:
    for keyword, argument in part.items():
        if keyword in _ONE:
            yield _below(place, keyword), argument
        elif keyword in _MANY:
            yield from ((_below(place, f"{keyword}[{number}]"), each) for number, each in enumerate(argument))
        elif keyword in _NAMED:
            yield from ((_below(_below(place, keyword), name), each) for name, each in argument.items())


def _below(place: str, name: str) -> str:
    """Return a place's name, shortened: a hostile name may have thousands of parts."""
    return f"{place[-_SHOWN:]}.{name[:_SHOWN]}"


def _shown(argument: Any) -> str:
    return repr(argument)[:_SHOWN] if isinstance(argument, str | int | float | None) else f"a {type(argument).__name__}"


# ---------------------------------------------------------------------------------------------- what keywords take


def _is_number(argument: Any) -> bool:
    return isinstance(argument, int | float) and not isinstance(argument, bool)


def _is_count(argument: Any) -> bool:
    return _is_number(argument) and argument >= 0 and argument == argument // 1


def _are_names(argument: Any) -> bool:
    return isinstance(argument, list) and all(isinstance(name, str) for name in argument)


def _is_type(argument: Any) -> bool:
    names = argument if isinstance(argument, list) else [argument]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


_SHAPES: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_MANY, lambda argument: isinstance(argument, list) and bool(argument)),
    **dict.fromkeys(_NAMED, lambda argument: isinstance(argument, dict)),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_NUMBERS, _is_number),
    "multipleOf": lambda argument: _is_number(argument) and argument > 0,
    "type": _is_type,
    "enum": lambda argument: isinstance(argument, list),
    "required": _are_names,
    "dependentRequired": lambda argument: isinstance(argument, dict) and all(map(_are_names, argument.values())),
    "uniqueItems": lambda argument: isinstance(argument, bool),
    **dict.fromkeys(("$ref", "$id", "$anchor", "pattern"), lambda argument: isinstance(argument, str)),
}
