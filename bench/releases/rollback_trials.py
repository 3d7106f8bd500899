"""The fate of canaries whose quality is known: 400 seeded trials of each kind, through the code that decides.

    python -m bench rollback_trials [--trials 400]

Assignment, evidence, guards and verdict are the product's, fed in event time and asked as the release controller
asks them, the verdict after every event. Users are synthetic: each likes answers more or less than others do, has
sessions that resemble each other, is far busier or idler than others, and gives feedback late or not at all."""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.progress import track

from bench.table import Row, report
from core.ids import InferenceId, base_ref
from core.settings import CanarySettings, HoldbackSettings
from serving.releases.canaries.assignment import Shares, assign
from serving.releases.canaries.evidence import RewardEvidence
from serving.releases.canaries.guards import tripped
from serving.releases.canaries.observations import ServedTurn
from serving.releases.canaries.recent import RecentTurns
from serving.releases.canaries.verdict import judge

SETTINGS, HOLDBACK = CanarySettings(), HoldbackSettings()
TRIALS = 400
SOON_TURNS = 500  # canary turns within which a worse version must be gone
MISSED = 0.05  # share of worse versions that may be there longer, and of better ones that may not be promoted
QUALITY = 0.5  # probability that an answer is accepted
USER_SPREAD, SESSION_SPREAD = 0.15, 0.1  # of that probability, standard deviations
ACTIVITY_SPREAD = 1.0  # of the logarithm of users' activity
SESSION_TURNS, SESSION_GAP_S, TURNS_PER_S = 3, 20.0, 5.0
ACCEPTED, REJECTED = 1.0, -0.5  # as in onward/rewards.toml
ACCEPT_S, REJECT_S, SILENT = 15.0, 3.0, 0.1  # mean delays; share of turns of which nothing is said
FAILING = 0.01  # share of turns that end in an error under any version
GUARDS_EVERY_TURNS = 50  # of the canary: the controller looks oftener, but guards are slow beside a trial


@dataclass(frozen=True)
class Case:
    name: str
    quality: float = 0.0  # of the canary, less that of the live version
    failing: float = FAILING  # of the canary
    users: int = 1000
    guards_every_turns: int = GUARDS_EVERY_TURNS
    hostile: bool = False  # the first user has three of four turns, and rejects what the canary says and nothing else


@dataclass(frozen=True)
class Ending:
    action: str
    turns: int  # of the canary, served until then


@dataclass(frozen=True)
class World:
    """Turns in the order in which they are received, with their users' rewards."""

    user: np.ndarray
    received_at_s: np.ndarray
    value: np.ndarray
    rewarded_at_s: np.ndarray  # infinite: never
    failed: np.ndarray
    latency_ms: np.ndarray
    arms: list[str]  # by user

    def events(self) -> Iterator[tuple[float, int, int]]:
        """Return (when, 0 for a turn and 1 for its reward, number of the turn) in order."""
        turns = [(at, 0, number) for number, at in enumerate(self.received_at_s.tolist())]
        rewards = [(at, 1, number) for number, at in enumerate(self.rewarded_at_s.tolist()) if math.isfinite(at)]
        return iter(sorted(turns + rewards))


def make_world(case: Case, seed: tuple[int, int]) -> World:
    rng = np.random.default_rng(seed)
    shares = Shares(SETTINGS.share, HOLDBACK.share, canary_salt=str(seed))
    arms: list[str] = [assign(shares, str(user))[0] for user in range(case.users)]
    sessions = int(2 * SETTINGS.horizon_turns / SETTINGS.share / SESSION_TURNS)
    activity = rng.lognormal(0, ACTIVITY_SPREAD, case.users)
    if case.hostile:
        activity[0] = 3 * activity[1:].sum()
        arms[0] = ("canary", "live")[seed[1] % 2]
    lengths = rng.geometric(1 / SESSION_TURNS, sessions)
    begins_s = rng.exponential(SESSION_TURNS / TURNS_PER_S, sessions).cumsum()
    session = np.repeat(np.arange(sessions), lengths)
    gaps_s = rng.exponential(SESSION_GAP_S, len(session)).cumsum()
    received_at_s = begins_s[session] + gaps_s - gaps_s[(lengths.cumsum() - lengths)[session]]
    user = rng.choice(case.users, sessions, p=activity / activity.sum())[session]
    on_canary = np.array([arm == "canary" for arm in arms])[user]
    likes = rng.normal(0, USER_SPREAD, case.users)[user] + rng.normal(0, SESSION_SPREAD, sessions)[session]
    accepted = rng.random(len(user)) < np.clip(QUALITY + likes + case.quality * on_canary, 0, 1)
    if case.hostile:
        accepted = np.where(user == 0, ~on_canary, accepted)
    failed = rng.random(len(user)) < np.where(on_canary, case.failing, FAILING)
    delay_s = rng.exponential(np.where(accepted, ACCEPT_S, REJECT_S))
    silent = failed | (rng.random(len(user)) < SILENT)
    order = np.argsort(received_at_s)
    return World(
        user=user[order],
        received_at_s=received_at_s[order],
        value=np.where(accepted, ACCEPTED, REJECTED)[order],
        rewarded_at_s=np.where(silent, math.inf, received_at_s + delay_s)[order],
        failed=failed[order],
        latency_ms=rng.lognormal(7, 0.5, len(user)),
        arms=arms,
    )


def served(world: World, number: int) -> ServedTurn:
    user = int(world.user[number])
    return ServedTurn(
        inference_id=InferenceId(str(number)),
        unit=str(user),
        experiment_id="trial",
        arm=world.arms[user],
        arm_assigned=world.arms[user],
        version=base_ref(1),
        received_at_s=float(world.received_at_s[number]),
        workload="write",
        purpose="turn",
        finish_reason="error" if world.failed[number] else "stop",
        invalid_call=False,
        latency_ms=float(world.latency_ms[number]),
        ttft_ms=None,
        tokens=40,
        empty=False,
        over_long=False,
    )


def run(case: Case, seed: tuple[int, int]) -> Ending:
    """Run an experiment as `serving.releases.canary.Canary` does, without a log and a store in between."""
    world = make_world(case, seed)
    rewards = RewardEvidence(SETTINGS.maturity_s)
    recent = {arm: RecentTurns(SETTINGS.guard_turns) for arm in ("canary", "live", "holdback")}
    turns = 0
    for now_s, kind, number in world.events():
        if kind == 1:
            rewards.reward(InferenceId(str(number)), float(world.value[number]))
        else:
            turn = served(world, number)
            recent[turn.arm].append(turn)
            rewards.turn(turn.inference_id, turn.unit, turn.arm, turn.received_at_s)
            turns += turn.arm == "canary"
            guarded = turn.arm == "canary" and turns % case.guards_every_turns == 0
            if guarded and tripped(recent["canary"], recent["live"]) is not None:
                return Ending("guard", turns)
        rewards.ripen(now_s)
        found = judge(rewards.arm("canary"), rewards.arm("live"), now_s, SETTINGS)
        if found.action != "wait":
            return Ending(found.action, turns)
    rewards.ripen(SETTINGS.horizon_s + SETTINGS.maturity_s)
    return Ending(judge(rewards.arm("canary"), rewards.arm("live"), SETTINGS.horizon_s, SETTINGS).action, turns)


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return exact bounds of a share, by bisection of binomial tails."""

    def at_most(k: int, p: float) -> float:
        return math.fsum(math.comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(k + 1))

    def solve(k: int, tail: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(k, middle) > tail else (low, middle)
        return low

    tail = (1 - confidence) / 2
    return (solve(hits - 1, 1 - tail) if hits else 0.0, solve(hits, tail) if hits < trials else 1.0)


def errors(what: str, wrong: int, trials: int, allowed: float) -> list[Row]:
    """Return the rows of a share of errors.

    A row holds where the share that was seen is not above what is allowed. The exact 95% interval says how far the true
    share may lie from it, and excuses nothing."""
    low, high = clopper_pearson(wrong, trials)
    share = wrong / trials
    return [
        Row.at_most(what, share, f"of {trials} trials", f"{allowed:g} allowed", share / allowed, 1.0),
        Row(f"{what}: 95% interval from", low, "share"),
        Row(f"{what}: 95% interval to", high, "share"),
    ]


def length(what: str, endings: list[Ending]) -> list[Row]:
    turns = np.array([ending.turns for ending in endings])
    return [Row(f"{what}: canary turns, {name}", float(np.quantile(turns, q)), "turns") for name, q in QUANTILES]


QUANTILES = (("median", 0.5), ("95th percentile", 0.95))
WORSE = Case("worse by 0.15", quality=-0.15)
EQUAL = Case("equal")
BETTER = Case("better by 0.10", quality=0.1)
BROKEN = Case("failing in a third of turns", failing=1 / 3, guards_every_turns=5)
WORSE_OF_FEW = replace(WORSE, name="worse by 0.15, 300 users", users=300)
CASES = (WORSE, EQUAL, BETTER, BROKEN, WORSE_OF_FEW)


def late(endings: list[Ending]) -> int:
    return sum(ending.action == "promote" or ending.turns > SOON_TURNS for ending in endings)


def rows(ended: dict[Case, list[Ending]]) -> Iterator[Row]:
    trials = len(ended[WORSE])
    yield from errors(f"{WORSE.name}: not gone within {SOON_TURNS} turns", late(ended[WORSE]), trials, MISSED)
    yield Row(f"{WORSE.name}: promoted", sum(e.action == "promote" for e in ended[WORSE]) / trials, "share")
    yield from length(WORSE.name, ended[WORSE])
    wrongly = sum(ending.action != "promote" for ending in ended[EQUAL])
    yield from errors(f"{EQUAL.name}: rolled back", wrongly, trials, SETTINGS.alpha)
    yield Row(f"{EQUAL.name}: by a guard", sum(e.action == "guard" for e in ended[EQUAL]) / trials, "share")
    not_promoted = sum(ending.action != "promote" for ending in ended[BETTER])
    yield from errors(f"{BETTER.name}: not promoted", not_promoted, trials, MISSED)
    yield from length(BETTER.name, ended[BETTER])
    unguarded = sum(ending.action != "guard" or ending.turns > 100 for ending in ended[BROKEN])
    yield from errors(f"{BROKEN.name}: no guard within 100 turns", unguarded, trials, MISSED)
    yield from length(BROKEN.name, ended[BROKEN])
    missed = late(ended[WORSE_OF_FEW]) / trials
    yield Row(f"{WORSE_OF_FEW.name}: not gone within {SOON_TURNS} turns", missed, f"of {trials} trials")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = range(parser.parse_args().trials)
    ended = {
        case: [run(case, (number, trial)) for trial in track(trials, description=case.name)]
        for number, case in enumerate(CASES)
    }
    report("rollback_trials", list(rows(ended)))


if __name__ == "__main__":
    main()
