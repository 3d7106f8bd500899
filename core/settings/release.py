"""Gate, cases, canaries, guards and orders."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from core.section import Section


class GateSettings(Section):
    max_kl: float = Field(default=1.0, gt=0)
    """Largest mean KL divergence per token to the live version, on the probe set, whatever is usual."""
    usual_kl_times: float = Field(default=10.0, gt=1)
    """How many times the usual KL of an update a learner's version may have, once eight were seen."""
    min_entropy: float = Field(default=1e-4, ge=0)
    """Smallest mean entropy per token (nats)."""
    max_entropy_share: float = Field(default=0.8, gt=0, le=1)
    """Largest mean entropy as a share of log(vocabulary)."""


class EvalSettings(Section):
    suite: Path | None = None
    """A suite of eval cases that each version is asked before any user is served by it; None: it is asked none."""
    margin: float = Field(default=0.05, gt=0, lt=1)
    """The share of all cases, by weight, by which it may be worse than the live version and pass."""
    budget_s: float = Field(default=600.0, gt=0)
    """Time for all of it: for an engine to ask, for the cases, and for asking again what was lost with an engine."""
    concurrency: int = Field(default=8, ge=1)
    """Cases under way at once, of both versions together."""
    allow_commands: bool = False
    """Whether checkers may run commands, and versions work on tasks in sandboxes, where the release controller runs."""


class CanarySettings(Section):
    enabled: Literal["auto", "on", "off"] = "auto"
    """Try each version on a share of users first; auto: with a fleet of several engines. One engine of one version
    cannot: there versions are released directly, under guards."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """Share of users that a canary serves."""
    maturity_s: float = Field(default=30.0, ge=0)
    """Age at which a turn's reward counts in the test of a canary, in every arm alike."""
    margin: float = Field(default=0.02, ge=0)
    """Reward by which a canary may be worse and still be promoted before the horizon."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Share of canaries as good as the live version that the test against it may roll back wrongly."""
    min_users: int = Field(default=20, ge=2)
    """Fewest users in each arm before the test decides; where users change arms, half of all where that is less, and
    five at least."""
    switch_s: float = Field(default=3600.0, ge=0)
    """In a small crowd, how long users stay in an arm: they are assigned anew from one block of time to the next, and
    compared with themselves. Small is one of fewer than three times `min_users` / `share`. 0: they never change."""
    follow_s: float = Field(default=600.0, ge=0)
    """In a small crowd, the least time from one version of the canary's lane to the next: the learner goes on, and the
    lane serves the newest of its versions that passed the gate. Each costs the engine the prefixes of sessions in the
    lane."""
    horizon_turns: int = Field(default=2000, ge=1)
    """Matured canary turns after which a canary is decided on whatever the test knows."""
    horizon_s: float = Field(default=86400.0, gt=0)
    """The same in time."""
    guard_turns: int = Field(default=2000, ge=20)
    """Most turns of each side that the guards look back on."""
    slower_times: float = Field(default=4.0, gt=1)
    """How many times the live version's time per token it may take. More where replicas share cores: then the busier
    one is slower whatever it serves."""


class HoldbackSettings(Section):
    share: float = Field(default=0.0, ge=0, lt=1)
    """Share of users that stay on the first version, against which slow drift is measured."""
    salt: str = "holdback"
    """The salt of the hash that chooses these users; another one chooses others."""


class ReleaseSettings(Section):
    controller: bool = True
    """Whether `onward run` decides on releases; False: an `onward release` process does."""
    lease_s: float = Field(default=5.0, gt=0)
    """How long a controller that fell silent keeps its lease."""
    order_timeout_s: float = Field(default=60.0, gt=0)
    """How long an operator's order may wait for an engine, apart from the time in which one loads the version."""
    first_turns: int = Field(default=50, ge=0, le=1000)
    """Turns of the first version that have a reward before another one takes its place at once: what that is compared
    with from then on. Of several users each has a part of them at most, until there are four times as many. 0: none. A
    canary leaves the first version users, and does not wait; nor do proposed versions, and orders."""
    gate: GateSettings = GateSettings()
    """The sanity gate: bounds of a version's probe."""
    evals: EvalSettings = EvalSettings()
    """Eval cases that a version must pass before a canary, or before it serves all."""
    canary: CanarySettings = CanarySettings()
    """The trial of a version on some users before it serves all."""
    holdback: HoldbackSettings = HoldbackSettings()
    """Users that stay on the first version."""
