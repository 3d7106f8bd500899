"""The language of `--where`, in which turns are chosen from a past.

    workload = chat and version >= 12 and tag.team in (search, ads) and outcome.accepted = true

A selection is conditions joined by `and`; a condition is FIELD OPERATOR VALUE, or FIELD in (VALUE, VALUE). A value with
white space, a comma or a parenthesis stands in quotes; an outcome's value in quotes is text, also where it reads as a
number. `=`, `in` and the orders hold when any value of the field does;
`!=` holds when none is equal, also where there is none. There is no `or`: `in` says most of it, and the rest is said
by two selections."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.errors import ConfigError
from core.ids import PolicyRef
from core.settings.names import probably_meant
from onward.replays.selection.fields import FIELDS, VALUE, Field, value_of
from onward.replays.selection.known import KnownTurn

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<sign>!=|<=|>=|[=<>(),])|(?P<word>[^\s"'=<>!(),]+))"""
)
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS: Final = ("=", "!=", "in", *_ORDERS)


@dataclass(frozen=True)
class Condition:
    """`name`: the part of the field's name behind the dot."""

    field: Field
    name: str
    operator: str
    values: tuple[Any, ...]

    def admits(self, known: KnownTurn) -> bool:
        found = self.field.read(known, self.name)
        match self.operator:
            case "=" | "in":
                return any(_are_equal(value, wanted) for value in found for wanted in self.values)
            case "!=":
                return not any(_are_equal(value, self.values[0]) for value in found)
        holds, wanted = _ORDERS[self.operator], self.values[0]
        return any(holds(value, wanted) for value in found if _have_order(value, wanted))


@dataclass(frozen=True)
class Selection:
    """Conditions that all must hold; without any, all turns are chosen. `text` is what was written."""

    text: str = ""
    conditions: tuple[Condition, ...] = ()

    def admits(self, known: KnownTurn) -> bool:
        return all(condition.admits(known) for condition in self.conditions)


def parse(texts: Sequence[str]) -> Selection:
    """Read one or more `--where`, all of which must hold. Raises ConfigError naming the field or the place."""
    conditions = tuple(condition for text in texts for condition in _conditions(text))
    return Selection(" and ".join(text.strip() for text in texts), conditions)


@dataclass(frozen=True)
class _Token:
    """`text` without its quotes; a quoted word is never an operator."""

    text: str
    place: int
    kind: str


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self._tokens, self._next = text, list(_tokens(text)), 0

    @property
    def is_over(self) -> bool:
        return self._next == len(self._tokens)

    def take(self, wanted: str, *kinds: str) -> _Token:
        """Return the next token, which is of one of these kinds. Raises ConfigError saying what is wanted."""
        found = None if self.is_over else self._tokens[self._next]
        if found is None or found.kind not in kinds:
            here = "at its end" if found is None else f"before {self.text[found.place :]!r}"
            raise ConfigError(f"--where {self.text!r}: want {wanted} {here}")
        self._next += 1
        return found

    def take_if(self, text: str) -> bool:
        found = not self.is_over and self._tokens[self._next]
        if not found or found.kind == "quoted" or found.text != text:
            return False
        self._next += 1
        return True


def _tokens(text: str) -> Iterator[_Token]:
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            raise ConfigError(f"--where {text!r}: cannot read {text[place:].strip()!r}")
        kind = str(found.lastgroup)
        yield _Token(found[kind][1:-1] if kind == "quoted" else found[kind], found.start(kind), kind)
        place = found.end()


def _conditions(text: str) -> Iterator[Condition]:
    reader = _Reader(text)
    while True:
        yield _condition(reader)
        if reader.is_over:
            return
        if not reader.take_if("and"):
            reader.take("`and`")


def _condition(reader: _Reader) -> Condition:
    named = reader.take("a field", "word").text
    field, name = _field(named)
    relation = reader.take(f"one of {' '.join(_OPERATORS)}", "sign", "word").text
    if relation not in _OPERATORS:
        raise ConfigError(f"--where: {named} {relation}: want one of {' '.join(_OPERATORS)}")
    found = _values(reader, relation)
    values = tuple(value_of(named, field.kind, each.text, quoted=each.kind == "quoted") for each in found)
    if relation in _ORDERS and not (field.kind.is_ordered and all(map(_is_ordered, values))):
        kind = "true or false, or text" if field.kind is VALUE else field.kind.name
        raise ConfigError(f"--where: {named} {relation}: {kind} is not more or less: want =, != or in")
    return Condition(field, name, relation, values)


def _values(reader: _Reader, relation: str) -> Iterator[_Token]:
    if relation != "in":
        yield reader.take("a value", "word", "quoted")
        return
    if not reader.take_if("("):
        reader.take("`(`")
    yield reader.take("a value", "word", "quoted")
    while not reader.take_if(")"):
        if not reader.take_if(","):
            reader.take("`,` or `)`")
        yield reader.take("a value", "word", "quoted")


def _field(named: str) -> tuple[Field, str]:
    if named in FIELDS and not FIELDS[named].named:
        return FIELDS[named], ""
    family, dot, name = named.partition(".")
    field = FIELDS.get(f"{family}.NAME")
    if field is not None and dot and name:
        return field, name
    meant = probably_meant(named, FIELDS)
    hint = f"is {meant} meant? " if meant else ""
    raise ConfigError(f"--where: there is no field {named!r}: {hint}there are {', '.join(FIELDS)}")


def _are_equal(value: Any, wanted: Any) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _is_ordered(value: Any) -> bool:
    return not isinstance(value, bool | str)


def _have_order(value: object, wanted: Any) -> bool:
    """Return whether one of them can be more than the other: versions of one policy, and numbers, can."""
    return value.policy == wanted.policy if isinstance(value, PolicyRef) else _is_ordered(value)
