"""What a schema asks for at least, counted before anything is compiled.

llguidance builds some automata whole, without counting its work: that of the multiples of a number has a state for each
remainder, and that of several patterns on one text up to a state for each combination of theirs."""

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from core.errors import InvalidRequest
from core.grammars.library import TOO_COMPLEX
from core.text.patterns import pattern

MOST_REMAINDERS: Final = 20_000  # 10 MB, a tenth of a second
MOST_COMBINED: Final = 1_000_000
_COUNT = pattern(r"\{(\d*),?(\d*)\}")
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
_LONGEST_COUNT = 9  # digits: of a longer one it matters only that it is too much


def check_cost(schema: object) -> None:
    """Raise InvalidRequest for a schema that asks for more than is built for anybody."""
    for each in _schemas(schema):
        factor = each.get("multipleOf")
        if _remainders(factor) > MOST_REMAINDERS:
            raise _too_complex(f"multipleOf {factor} has more digits than can be checked while an answer is written")
        if isinstance(each.get("allOf"), list) and _combined(each) > MOST_COMBINED:
            raise _too_complex("allOf has too many or too long patterns for one text")


def _schemas(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a schema that may be a schema itself."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            yield each
            waiting += (part for name, part in each.items() if name not in _VALUES)
        elif isinstance(each, list):
            waiting += each


def _remainders(factor: object) -> int:
    """Return how many remainders there are by a factor, whose digits count without its point."""
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        return 0
    try:
        digits = Decimal(str(factor)).normalize().as_tuple()
    except InvalidOperation:
        return 0
    if not isinstance(digits.exponent, int):
        return 0
    zeros = min(max(digits.exponent, 0), _LONGEST_COUNT)
    return int("".join(map(str, digits.digits)) + "0" * zeros)


def _combined(schema: Mapping[str, Any]) -> int:
    """Return how many combinations the patterns make that hold for the same text."""
    product = 1
    waiting: list[object] = [schema]
    while waiting and product <= MOST_COMBINED:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if isinstance(text := each.get("pattern"), str):
                product *= max(2, _size(text))
            waiting += each["allOf"] if isinstance(each.get("allOf"), list) else []
    return product


def _size(text: str) -> int:
    counts = (most or least for least, most in _COUNT.groups(text))
    return len(text) + sum(int(count[:_LONGEST_COUNT] or 0) for count in counts)


def _too_complex(what: str) -> InvalidRequest:
    return InvalidRequest(what, code=TOO_COMPLEX)
