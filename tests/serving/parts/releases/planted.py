"""Planted turns and rewards in the log: which version served users, and how good it was."""

import random
from typing import Any

import made_events
from release_world import ReleaseWorld

from core.events import Alarm, Completion, LogprobSpace, Reward, Sampling, Topic, VersionSpan
from core.ids import (
    GroupId,
    Namespace,
    UserHash,
    base_ref,
    new_group_id,
    new_inference_id,
    new_session_id,
)


def plant(world: ReleaseWorld, users: int, mean: float | None = None, *, first: int = 0, **fields: Any) -> None:
    """Append a turn of each of `users`, with rewards around `mean`; None means no rewards yet."""
    turns = [
        turn(world, f"user-{first + number}", **({"latency_ms": 12.5 + number / 100} | fields))
        for number in range(users)
    ]
    world.log.append_blocking(Topic.TURNS, turns)
    if mean is not None:
        spread = random.Random(first)
        rewards = [reward(world, each, mean + spread.uniform(-0.1, 0.1)) for each in turns]
        world.log.append_blocking(Topic.REWARDS, rewards)


def plant_arms(world: ReleaseWorld, users: int, *, canary: float, live: float, first: int = 0) -> None:
    """Plant turns of the running experiment, with these mean rewards in each arm."""
    experiment = world.experiments()[0]
    fields = {"experiment_id": experiment.experiment_id, "first": first}
    plant(world, users, canary, arm="canary", version=experiment.canary, **fields)
    plant(world, users, live, arm="live", version=experiment.control, **fields)


def turn(world: ReleaseWorld, user: str, *, version: int, arm: str = "live", **fields: Any) -> Completion:
    session_id = new_session_id()
    usual: dict[str, Any] = {
        "inference_id": new_inference_id(session_id),
        "session_id": session_id,
        "turn_index": 0,
        "parent_id": None,
        "group_id": GroupId(new_group_id()),
        "namespace": Namespace("default"),
        "user_id": UserHash(f"{arm}-{user}"),
        "workload": "write",
        "purpose": "turn",
        "received_at": world.clock.now(),
        "messages": ({"role": "user", "content": "write total(xs)"},),
        "sampling": Sampling(),
        "prompt_token_ids": (1, 2, 3),
        "token_ids": (4, 5),
        "logprobs": (-0.1, -2.5),
        "logprob_space": LogprobSpace(temperature=1.0),
        "trainable": True,
        "policy": "tiny",
        "policy_versions": (VersionSpan(start=0, end=2, version=base_ref(version)),),
        "arm": arm,
        "arm_assigned": arm,
        "tokenizer_digest": "t",
        "renderer": "r",
        "finish_reason": "stop",
        "text": "sum(xs)",
        "delivered_tokens": 2,
        "latency_ms": 12.5,
    }
    return Completion(**(usual | fields))


def reward(world: ReleaseWorld, of: Completion, value: float, revision: int = 0) -> Reward:
    return made_events.reward_of(of, value, world.clock.now(), revision=revision)


def alarm(world: ReleaseWorld, name: str = "a", **fields: Any) -> Alarm:
    now = world.clock.now()
    usual: dict[str, Any] = {
        "alarm_id": name,
        "monitor": "broken tool calls",
        "severity": "critical",
        "window_start": now,
        "window_end": now,
        "figures": {"share": 0.4},
        "holds": ("release",),
        "state": "opened",
        "at": now,
    }
    return Alarm(**(usual | fields))
