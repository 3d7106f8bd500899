"""Turns of a clean service as monitors see them, with the changes that a test makes."""

import random
from collections.abc import Callable
from typing import Any

import msgspec

from core.ids import InferenceId, Namespace, SessionId
from core.reward_spec.roles import USUAL
from scoring.monitors import WatchedTurn, with_roles

TURNS, USERS = 400, 60
Change = Callable[[WatchedTurn, random.Random], dict[str, Any]]


def turns(seed: int, change: Change | None = None, *, quality: float = 0.4, count: int = TURNS) -> list[WatchedTurn]:
    """Return turns of a clean service.

    Users differ in their habits; tests run now and then, and mostly agree with the users."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        user = int(USERS * rng.random() ** 1.3)
        good = rng.random() < quality
        spoken = rng.random() < 0.7
        accepted = good if rng.random() < 0.93 else not good
        told = {"accepted": float(accepted)} if spoken else {}
        told |= {"tests_passed": 1.0 if good else -1.0} if rng.random() < 0.5 else {}
        value = (1.0 if accepted else -0.5) if spoken else (-0.05 if rng.random() < 0.9 else None)
        offered = rng.random() < 0.5
        edits = offered and rng.random() < 0.6
        turn = WatchedTurn(
            inference_id=InferenceId(str(number)),
            session_id=SessionId(f"s{number}"),
            namespace=Namespace("default"),
            unit=f"u{user}",
            workload="fix" if offered else "write",
            purpose="turn",
            version=None,
            arm="live",
            environment="simulated" if rng.random() < 0.3 else "production",
            at_s=float(number),
            tokens=max(1, int(rng.lognormvariate(3.5, 0.5))),
            seconds=1.0,
            calls=int(offered) + int(rng.random() < 0.1),
            offered=offered,
            edits=edits,
            tests=False,
            searches=False,
            malformed=offered and rng.random() < 0.04,
            asks=rng.random() < 0.07,
            silent=rng.random() < 0.02,
            refuses=rng.random() < 0.01,
            repetition=rng.random() * 0.1,
            surprisal=rng.lognormvariate(-1.0, 0.4),
            value=value,
            components={} if value is None else {_said(value): value, "effort": -0.02 * rng.random()},
            told=told,
            by_default=not told,
            judged={"accepted": told["accepted"]} if "accepted" in told and rng.random() < 0.5 else {},
        )
        changed = msgspec.structs.replace(turn, **(change(turn, rng) if change else {}))
        made.append(with_roles(changed, USUAL))
    return made


def _said(value: float) -> str:
    return "accepted" if value > 0 else "rejected"
