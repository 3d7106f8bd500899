"""Reads what a task's tests wrote as their verdict: one number, or several by name."""

import json
import math
from collections.abc import Mapping
from typing import Any

from environments.errors import NoVerdict
from environments.sandboxes.sandbox import WORKSPACE

TEXT, NAMED = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"
TOLD = f"{WORKSPACE}/rewards.json"  # by the harness of another library, which judges as well
REWARD = "reward"
_MOST_BYTES = 64 << 10  # of a verdict


def from_text(content: bytes) -> dict[str, float]:
    """Return the reward of `reward.txt`. Raises NoVerdict for what is no finite number."""
    _refuse_long(TEXT, content)
    try:
        return {REWARD: _finite(float(content))}
    except ValueError as error:
        raise _malformed(TEXT, content) from error


def from_named(content: bytes) -> dict[str, float]:
    """Return the rewards of `reward.json`, an object of numbers. Raises NoVerdict."""
    _refuse_long(NAMED, content)
    try:
        given: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _malformed(NAMED, content) from error
    if not isinstance(given, dict) or not given:
        raise _malformed(NAMED, content)
    try:
        return {name: _finite(value) for name, value in given.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise _malformed(NAMED, content) from error


def reward_of(rewards: Mapping[str, float]) -> float:
    """Return the one that counts: `reward`, or the only one there is.

    Raises NoVerdict where there is none, or it is not between 0 and 1."""
    if REWARD not in rewards and len(rewards) != 1:
        raise NoVerdict(f"of the rewards {', '.join(sorted(rewards))}, none is named {REWARD}")
    value = rewards[REWARD] if REWARD in rewards else next(iter(rewards.values()))
    if not 0.0 <= value <= 1.0:
        raise NoVerdict(f"the reward {value:g} is not between 0 and 1")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError("not a number")
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _refuse_long(path: str, content: bytes) -> None:
    if len(content) > _MOST_BYTES:
        raise NoVerdict(f"{path} has {len(content)} bytes, which is no reward")


def _malformed(path: str, content: bytes) -> NoVerdict:
    return NoVerdict(f"{path} is no reward: {content[:200].decode(errors='replace')!r}")
