"""Validation of a value by a schema: yes, no, or undecided.

Unsupported keywords are undecided; the rest is combined with them by Kleene's three-valued logic."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

from core.text.json_schema.document import DEEPEST, Document, NoSchema
from core.text.json_schema.values import key_of
from core.text.patterns import Pattern

MOST_STEPS: Final = 20_000
_CHARACTERS: Final = 4  # of a text, that a pattern looks at in a step
Validity = bool | None


class _Beyond(Exception):
    """More steps than anybody's schema takes."""


class StepBudget:
    """A budget of steps, for one value or for several together."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Beyond


class Schema:
    """A schema. Raises NoSchema. `unfollowed`: unsupported places, with the reasons."""

    def __init__(self, root: Any) -> None:
        try:
            self._document = Document(root)
        except RecursionError:
            raise NoSchema("$: nested deeper than can be read") from None
        self.unfollowed = self._document.unfollowed

    def admits(self, value: Any, budget: StepBudget | None = None) -> Validity:
        """Return whether the schema admits a value; None when that cannot be decided within the budget."""
        try:
            return _Walk(self._document, budget or StepBudget()).fits(self._document.root, value, 0)
        except (_Beyond, RecursionError):  # the latter: a value nested deeper than can be compared
            return None


class _Walk:
    def __init__(self, document: Document, budget: StepBudget) -> None:
        self.document = document
        self.spend = budget.spend

    def fits(self, schema: Any, value: Any, depth: int) -> Validity:
        if isinstance(schema, bool):
            self.spend()
            return schema
        self.spend(1 + len(schema))
        if depth > DEEPEST:
            raise _Beyond
        at = _At(self, schema, value, depth)
        return _all(rule(at, argument) for name, argument in schema.items() if (rule := _RULES.get(name)) is not None)

    def matches(self, pattern: Pattern | None, text: str) -> Validity:
        self.spend(1 + len(text) // _CHARACTERS)
        return None if pattern is None else pattern.is_in(text)


class _At:
    """A schema, and a value that is held against it."""

    def __init__(self, walk: _Walk, schema: dict[str, Any], value: Any, depth: int) -> None:
        self.walk, self.schema, self.value, self._depth = walk, schema, value, depth

    def fits(self, schema: Any, value: Any) -> Validity:
        return self.walk.fits(schema, value, self._depth + 1)

    def same(self, schema: Any) -> Validity:
        return self.fits(schema, self.value)


def _all(verdicts: Iterable[Validity]) -> Validity:
    whole: Validity = True
    for verdict in verdicts:
        if verdict is False:
            return False
        whole = None if verdict is None else whole
    return whole


def _any(verdicts: Iterable[Validity]) -> Validity:
    return _not(_all(map(_not, verdicts)))


def _not(verdict: Validity) -> Validity:
    return None if verdict is None else not verdict


def _within(verdicts: Iterable[Validity], least: float, most: float) -> Validity:
    """Return whether the number of admitting schemas is within the bounds."""
    said = list(verdicts)
    sure, possible = sum(verdict is True for verdict in said), sum(verdict is not False for verdict in said)
    if possible < least or sure > most:
        return False
    return True if sure >= least and possible <= most else None


# ---------------------------------------------------------------------------------------------- of any value


def _type(at: _At, names: str | list[str]) -> Validity:
    return any(_is_of(name, at.value) for name in ([names] if isinstance(names, str) else names))


def _is_of(name: str, value: Any) -> bool:
    if name == "integer":
        return _is_number(value) and (isinstance(value, int) or value.is_integer())
    if name == "number":
        return _is_number(value)
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[name])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _enum(at: _At, values: list[Any]) -> Validity:
    return key_of(at.value, at.walk.spend) in at.walk.document.choices(values)


def _const(at: _At, value: Any) -> Validity:
    return key_of(at.value, at.walk.spend) == key_of(value, at.walk.spend)


def _reference(at: _At, reference: str) -> Validity:
    target = at.walk.document.target(reference)
    return None if target is None else at.same(target)


def _one_of(at: _At, schemas: list[Any]) -> Validity:
    return _within([at.same(schema) for schema in schemas], 1, 1)


def _if(at: _At, condition: Any) -> Validity:
    holds = at.same(condition)
    branches = [name for name, when in (("then", True), ("else", False)) if holds is None or holds is when]
    said = {at.same(at.schema[name]) if name in at.schema else True for name in branches}
    return said.pop() if len(said) == 1 else None


# ---------------------------------------------------------------------------------------------- of numbers and texts


def _compared(holds: Callable[[Any, Any], bool]) -> Callable[[_At, Any], Validity]:
    return lambda at, bound: not _is_number(at.value) or holds(at.value, bound)


def _multiple_of(at: _At, of: float) -> Validity:
    if not _is_number(at.value):
        return True
    if not (math.isfinite(of) and (isinstance(at.value, int) or math.isfinite(at.value))):
        return None
    return Fraction(str(at.value)) % Fraction(str(of)) == 0


def _pattern(at: _At, source: str) -> Validity:
    return not isinstance(at.value, str) or at.walk.matches(at.walk.document.pattern(source), at.value)


def _sized(kind: type, holds: Callable[[int, float], bool]) -> Callable[[_At, float], Validity]:
    return lambda at, bound: not isinstance(at.value, kind) or holds(_size(at.value), bound)


def _size(value: Any) -> int:
    return len(value)


# ---------------------------------------------------------------------------------------------- of arrays


def _unique(at: _At, wanted: bool) -> Validity:
    if not wanted or not isinstance(at.value, list):
        return True
    return len({key_of(item, at.walk.spend) for item in at.value}) == len(at.value)


def _prefix(at: _At, schemas: list[Any]) -> Validity:
    items = at.value if isinstance(at.value, list) else []
    return _all(at.fits(schema, item) for schema, item in zip(schemas, items, strict=False))


def _items(at: _At, schema: Any) -> Validity:
    if not isinstance(at.value, list):
        return True
    first: list[Any] = at.schema.get("prefixItems", [])
    return _all(at.fits(schema, item) for item in at.value[len(first) :])


def _contains(at: _At, schema: Any) -> Validity:
    if not isinstance(at.value, list):
        return True
    bounds = at.schema.get("minContains", 1), at.schema.get("maxContains", math.inf)
    return _within((at.fits(schema, item) for item in at.value), *bounds)


# ---------------------------------------------------------------------------------------------- of objects


def _object(at: _At) -> dict[str, Any]:
    return at.value if isinstance(at.value, dict) else {}


def _required(at: _At, names: list[str]) -> Validity:
    at.walk.spend(len(names))
    return not isinstance(at.value, dict) or all(name in at.value for name in names)


def _properties(at: _At, schemas: dict[str, Any]) -> Validity:
    value = _object(at)
    at.walk.spend(min(len(schemas), len(value)))
    return _all(at.fits(schemas[name], value[name]) for name in value if name in schemas)


def _pattern_properties(at: _At, schemas: dict[str, Any]) -> Validity:
    return _all(
        _any((_not(at.walk.matches(at.walk.document.pattern(source), name)), at.fits(schema, part)))
        for source, schema in schemas.items()
        for name, part in _object(at).items()
    )


def _additional(at: _At, schema: Any) -> Validity:
    named = at.schema.get("properties", {})
    patterns = [at.walk.document.pattern(source) for source in at.schema.get("patternProperties", {})]
    return _all(
        _any((*(at.walk.matches(pattern, name) for pattern in patterns), at.fits(schema, part)))
        for name, part in _object(at).items()
        if name not in named
    )


def _names(at: _At, schema: Any) -> Validity:
    return _all(at.fits(schema, name) for name in _object(at))


def _dependent_required(at: _At, needs: dict[str, list[str]]) -> Validity:
    at.walk.spend(sum(map(len, needs.values())))
    value = _object(at)
    return all(name in value for given, names in needs.items() if given in value for name in names)


def _dependent_schemas(at: _At, schemas: dict[str, Any]) -> Validity:
    return _all(at.same(schema) for name, schema in schemas.items() if name in _object(at))


def _unfollowed(at: _At, argument: Any) -> Validity:
    return None


_RULES: Final[dict[str, Callable[[_At, Any], Validity]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "$ref": _reference,
    "allOf": lambda at, schemas: _all(at.same(schema) for schema in schemas),
    "anyOf": lambda at, schemas: _any(at.same(schema) for schema in schemas),
    "oneOf": _one_of,
    "not": lambda at, schema: _not(at.same(schema)),
    "if": _if,
    "minimum": _compared(lambda value, bound: value >= bound),
    "maximum": _compared(lambda value, bound: value <= bound),
    "exclusiveMinimum": _compared(lambda value, bound: value > bound),
    "exclusiveMaximum": _compared(lambda value, bound: value < bound),
    "multipleOf": _multiple_of,
    "minLength": _sized(str, lambda size, bound: size >= bound),
    "maxLength": _sized(str, lambda size, bound: size <= bound),
    "pattern": _pattern,
    "minItems": _sized(list, lambda size, bound: size >= bound),
    "maxItems": _sized(list, lambda size, bound: size <= bound),
    "uniqueItems": _unique,
    "prefixItems": _prefix,
    "items": _items,
    "contains": _contains,
    "minProperties": _sized(dict, lambda size, bound: size >= bound),
    "maxProperties": _sized(dict, lambda size, bound: size <= bound),
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "$dynamicRef": _unfollowed,
    "unevaluatedItems": _unfollowed,
    "unevaluatedProperties": _unfollowed,
}
