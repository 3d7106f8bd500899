"""What stands of what was said of turns, and whether it is what a choice asks for."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from core.errors import ConfigError
from core.events import Completion, Outcome
from core.ids import InferenceId
from core.ports import Store
from scoring.rewards.amendments import standing

Asked = tuple[str, str | None]
"""The name of an outcome and its value in words; None: any value."""


def outcomes_of(session: Sequence[Completion], stores: Sequence[Store]) -> dict[InferenceId, list[Outcome]]:
    """Return what stands of what was said of a session's turns, and of the session as a whole under each of them.

    What one store lacks may be in another."""
    namespace, name = session[0].namespace, session[0].session_id
    ids = [turn.inference_id for turn in session]
    found: dict[str, Outcome] = {}
    for store in stores:
        with store.look() as view:
            said = view.outcomes.of_turns(ids) + view.outcomes.of_session(namespace, name)
        found |= {each.outcome_id: each for each in said}
    by_turn: defaultdict[InferenceId, list[Outcome]] = defaultdict(list)
    for entry in standing(found.values()):
        about = entry.outcome.inference_id
        for each in ids if about is None else [about]:
            by_turn[each].append(entry.outcome)
    return dict(by_turn)


def asked_of(text: str, told: str) -> Asked:
    """Read `NAME` or `NAME=VALUE`. Raises ConfigError, which begins with what is `told` of the option."""
    name, equals, value = text.partition("=")
    if not name or (equals and not value):
        raise ConfigError(f"{told}: want NAME or NAME=VALUE")
    return name, value if equals else None


def are_said(asked: Iterable[Asked], outcomes: Sequence[Outcome]) -> bool:
    """Return whether each of what is asked for is among the outcomes."""
    return all(any(each.name == name and _is(each, value) for each in outcomes) for name, value in asked)


def _is(outcome: Outcome, value: str | None) -> bool:
    if value is None:
        return True
    match outcome.value:
        case bool() as truth:
            return value == str(truth).lower()
        case int() | float() as number:
            return _number(value) == number
        case text:
            return value == text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
