"""The fields of a turn that `--where` asks about, and the kinds of values they have.

A field has any number of values: none where a turn has not got it, several where a turn has more than one, as of
versions, tags and outcomes."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from core.errors import ConfigError
from core.ids import PolicyRef
from onward.replays.history import moment
from onward.replays.selection.known import KnownTurn

Read = Callable[[KnownTurn, str], Iterable[Any]]
"""Returns the field's values of a turn; the text is the part of the field's name behind the dot, else empty."""


@dataclass(frozen=True)
class Kind:
    """A kind of values: what it is called, how one is written, and whether one can be less than another."""

    name: str
    parse: Callable[[str], Any]
    is_ordered: bool = False


@dataclass(frozen=True)
class Field:
    """`named`: None: the field stands alone; True: a name follows behind a dot, as in `tag.team`."""

    kind: Kind
    read: Read
    meaning: str
    named: bool = False


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _said(text: str) -> bool | float | str:
    """Read what an outcome may be: true or false, a number, or text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


TEXT: Final = Kind("text", str)
NUMBER: Final = Kind("a number", _number, is_ordered=True)
FLAG: Final = Kind("true or false", _flag)
TIME: Final = Kind("a time", datetime.fromisoformat, is_ordered=True)
VERSION: Final = Kind("a version, as 12 or acme@12", PolicyRef.parse, is_ordered=True)
VALUE: Final = Kind("true or false, a number or text", _said, is_ordered=True)


def value_of(field: str, kind: Kind, text: str, *, quoted: bool = False) -> Any:
    """Read a value; in quotes it is text where it could be something else. Raises ConfigError naming the field."""
    if quoted and kind is VALUE:
        return text
    if kind is TIME:
        return moment(f"--where: {field}", text)
    try:
        return kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"--where: {field} is {kind.name}, not {text!r}") from error


def _given(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def _of_turn(name: str) -> Read:
    return lambda known, _: _given(getattr(known.turn, name))


def _of_reward(known: KnownTurn, _: str) -> Iterable[float]:
    return () if known.reward is None or known.reward.void else (known.reward.value,)


def _outcome_values(known: KnownTurn, name: str) -> Iterable[Any]:
    return [each.value for each in known.heard if each.name == name and each.value is not None]


FIELDS: Final[Mapping[str, Field]] = {
    "namespace": Field(TEXT, _of_turn("namespace"), "the tenant"),
    "workload": Field(TEXT, _of_turn("workload"), "what the request was for"),
    "purpose": Field(TEXT, _of_turn("purpose"), "`turn`, `suggestion`, `side`, `summary` or `judge`"),
    "session": Field(TEXT, _of_turn("session_id"), "the session's id"),
    "user": Field(TEXT, _of_turn("user_id"), "the hash of who asked"),
    "client": Field(TEXT, _of_turn("client"), "the program that asked"),
    "protocol": Field(TEXT, _of_turn("protocol"), "the protocol it asked in"),
    "harness": Field(TEXT, _of_turn("harness_version"), "the harness's version, as it gives it"),
    "experiment": Field(TEXT, _of_turn("experiment_id"), "the experiment that ran"),
    "arm": Field(TEXT, _of_turn("arm"), "`live`, `canary` or `holdback`"),
    "environment": Field(TEXT, _of_turn("environment"), "`production` or `simulated`"),
    "finish": Field(TEXT, _of_turn("finish_reason"), "`stop`, `length`, `tool_calls`, `abort` or `error`"),
    "trainable": Field(FLAG, _of_turn("trainable"), "whether its tokens are an exact sample"),
    "tokens": Field(NUMBER, lambda known, _: (known.turn.num_output_tokens,), "how many tokens the answer has"),
    "version": Field(
        VERSION, lambda known, _: [span.version for span in known.turn.policy_versions], "a version that spoke"
    ),
    "time": Field(TIME, _of_turn("received_at"), "when the request came"),
    "reward": Field(NUMBER, _of_reward, "the reward, as it was in the end"),
    "outcome": Field(TEXT, lambda known, _: [each.name for each in known.heard], "the name of an outcome"),
    "tag": Field(TEXT, lambda known, _: known.turn.tags, "the name of a tag"),
    "outcome.NAME": Field(VALUE, _outcome_values, "the value of that outcome", named=True),
    "tag.NAME": Field(TEXT, lambda known, name: _given(known.turn.tags.get(name)), "the value of that tag", named=True),
}
