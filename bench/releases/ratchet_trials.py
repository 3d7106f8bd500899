"""Ten canaries in a row, each a little worse than what is live: how far do they go down together? 300 seeded trials.

    python -m bench ratchet_trials [--trials 300]

The verdicts are the product's own (`serving.releases.canaries.verdict.judge`), and so is the assignment; evidence is
computed for all looks of an experiment at once, in arrays, which a test holds against `RewardEvidence`. Users are
those of `bench.releases.rollback_trials`, the same ones through all ten experiments, in other arms each time.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from bench.releases import rollback_trials as world
from bench.releases.rollback_trials import errors
from bench.table import Row, report
from core.ids import PolicyRef, base_ref
from core.settings import CanarySettings
from serving.releases.canaries.assignment import Shares, assign
from serving.releases.canaries.evidence import LIKENESS
from serving.releases.canaries.ratchet import PromotionStep
from serving.releases.canaries.verdict import CanaryVerdict, judge

SETTINGS = CanarySettings()
STEPS = 10
USERS = 1000
LOOKS = 40
FAR = 0.10  # of quality, below where it began
_SEED = 7
_ROOM = 1.6  # turns drawn, by those that reach the horizon on the average

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Habits:
    """The users that all experiments of one trial have in common."""

    likes: Floats  # by user, of the probability to accept
    activity: Floats


@dataclass(frozen=True)
class Arm:
    """One look at one arm; implements serving.releases.evidence.Arm."""

    turns: int
    users: int
    mean: float
    squared_error: float
    count_U: NDArray[np.int64]
    """Turns of each user."""

    @property
    def units(self) -> dict[str, Any]:
        return {str(user): None for user in np.flatnonzero(self.count_U)}

    def turns_of(self, most: float) -> float:
        return float(np.minimum(self.count_U, most).sum())


@dataclass(frozen=True)
class Counted:
    """Turns that have a reward and are of age, in the order in which they are counted."""

    user: NDArray[np.int64]
    on_canary: NDArray[np.bool_]  # by turn
    value: Floats
    at_s: Floats


def draw_habits(trial: int, users: int) -> Habits:
    rng = np.random.default_rng((_SEED, trial))
    likes = rng.normal(0, world.USER_SPREAD, users)
    return Habits(likes, rng.lognormal(0, world.ACTIVITY_SPREAD, users))


def draw(habits: Habits, live: float, canary: float, seed: tuple[int, ...]) -> Counted:
    """Draw an experiment's turns. `live` and `canary` are probabilities to accept."""
    rng = np.random.default_rng(seed)
    users = len(habits.likes)
    shares = Shares(SETTINGS.share, 0.0, canary_salt=str(seed))
    is_canary = np.array([assign(shares, str(user))[0] == "canary" for user in range(users)])
    chance = habits.activity / habits.activity.sum()
    share = float(chance[is_canary].sum())  # the busiest may all be on one side
    wanted = _ROOM * SETTINGS.horizon_turns / share / (1 - world.SILENT)
    sessions = int(wanted / world.SESSION_TURNS)
    lengths = rng.geometric(1 / world.SESSION_TURNS, sessions)
    session = np.repeat(np.arange(sessions), lengths)
    begins_s = rng.exponential(world.SESSION_TURNS / world.TURNS_PER_S, sessions).cumsum()
    gaps_s = rng.exponential(world.SESSION_GAP_S, len(session)).cumsum()
    received_at_s = begins_s[session] + gaps_s - gaps_s[(lengths.cumsum() - lengths)[session]]
    user = rng.choice(users, sessions, p=chance)[session]
    likes = habits.likes[user] + rng.normal(0, world.SESSION_SPREAD, sessions)[session]
    on_canary = is_canary[user]
    accepts = rng.random(len(user)) < np.clip(likes + np.where(on_canary, canary, live), 0, 1)
    delay_s = rng.exponential(np.where(accepts, world.ACCEPT_S, world.REJECT_S))
    at_s = np.maximum(received_at_s + SETTINGS.maturity_s, received_at_s + delay_s)
    said = np.flatnonzero(rng.random(len(user)) >= world.SILENT)
    order = said[np.argsort(at_s[said])]
    value = np.where(accepts, world.ACCEPTED, world.REJECTED)
    return Counted(user[order], on_canary[order], value[order], at_s[order])


def looks(turns: Counted, users: int, most: int = LOOKS) -> Iterator[tuple[Arm, Arm, float]]:
    """Yield (canary, live, age) at every horizon / `most` canary turns, up to the horizon."""
    canary_turns = turns.on_canary.cumsum()
    every = SETTINGS.horizon_turns // most
    ends = np.searchsorted(canary_turns, every * np.arange(1, most + 1)) + 1
    assert ends[-1] <= len(turns.user), "the horizon lies within what was drawn"
    arms = [_arms(turns, on, ends, users) for on in (turns.on_canary, ~turns.on_canary)]
    ages_s = turns.at_s[ends - 1].tolist()
    return iter(list(zip(*arms, ages_s, strict=True)))


def _arms(turns: Counted, mine: NDArray[np.bool_], ends: NDArray[np.int64], users: int) -> list[Arm]:
    look = np.searchsorted(ends, np.flatnonzero(mine), side="right")  # of the first that sees it
    within = look < len(ends)
    place, value = (look * users + turns.user[mine])[within], turns.value[mine][within]
    size = len(ends) * users
    count_LU = np.bincount(place, minlength=size).reshape(-1, users).cumsum(0)
    total_LU = np.bincount(place, value, minlength=size).reshape(-1, users).cumsum(0)
    weight_LU = count_LU / (1 + LIKENESS * (count_LU - 1))
    mean_LU = total_LU / np.maximum(count_LU, 1)
    weight_L, users_L = weight_LU.sum(1), (count_LU > 0).sum(1)
    mean_L = (weight_LU * mean_LU).sum(1) / weight_L
    squares_L = ((weight_LU * (mean_LU - mean_L[:, None])) ** 2).sum(1)
    error_L = np.where(users_L > 1, squares_L / weight_L**2 * users_L / np.maximum(users_L - 1, 1), np.inf)
    columns = (count_LU.sum(1), users_L, mean_L, error_L)
    rows = zip(*(column.tolist() for column in columns), count_LU, strict=True)
    return [Arm(*each) for each in rows]


# --------------------------------------------------------------------------------------------- ten in a row


@dataclass(frozen=True)
class Case:
    """A kind of trial.

    `step`: the quality of each canary, less that of the version it is tried against. Not `is_guarded`: against that
    version only, as if nothing had been measured before."""

    name: str
    step: float
    is_guarded: bool = True
    users: int = USERS


@dataclass(frozen=True)
class Served:
    """A version that is live: its quality, and the steps that led to it, the newest first."""

    number: PolicyRef
    quality: float
    steps: tuple[PromotionStep, ...] = ()


@dataclass(frozen=True)
class Trail:
    """The results of ten canaries."""

    quality: float  # at the end, less that at the beginning
    refused: int  # canaries
    returned: int  # versions that were live and were taken back


def trail(case: Case, trial: int) -> Trail:
    habits = draw_habits(trial, case.users)
    path = [Served(base_ref(1), world.QUALITY)]
    refused = returned = 0
    for number in range(2, STEPS + 2):
        live = path[-1]
        tried = replace(live, number=base_ref(number), quality=live.quality + case.step)
        found = _ended(habits, live, tried, (trial, number), is_guarded=case.is_guarded)
        if found.action == "promote":
            made = PromotionStep.measured(live.number, found.figures["difference"], found.figures["error"])
            path.append(replace(tried, steps=(made, *live.steps)))
            continue
        refused += 1
        if found.back_to is not None:
            kept = next(place for place, version in enumerate(path) if version.number == found.back_to) + 1
            returned += len(path) - kept
            path = path[:kept]
    return Trail(path[-1].quality - world.QUALITY, refused, returned)


def _ended(habits: Habits, live: Served, canary: Served, seed: tuple[int, int], *, is_guarded: bool) -> CanaryVerdict:
    turns = draw(habits, live.quality, canary.quality, seed)
    steps = live.steps if is_guarded else ()
    for mine, theirs, age_s in looks(turns, len(habits.likes)):
        found = judge(mine, theirs, age_s, SETTINGS, live.number, steps)
        if found.action != "wait":
            return found
    # Turns of which few users brought most do not make up the horizon: time does.
    return judge(mine, theirs, SETTINGS.horizon_s, SETTINGS, live.number, steps)


# --------------------------------------------------------------------------------------------- what is reported

TRIALS = 300
ALLOWED = 0.05
DOWN = Case("ten steps of -0.03", -0.03)
DOWN_ALONE = replace(DOWN, name="the same, each against the live version alone", is_guarded=False)
DOWN_OF_FEW = replace(DOWN, name="the same, 300 users", users=300)
LEVEL = Case("ten steps that change nothing", 0.0)
LEVEL_ALONE = replace(LEVEL, name="the same, each against the live version alone", is_guarded=False)
UP_A_LITTLE = Case("ten steps of +0.015", 0.015)
UP = Case("ten steps of +0.03", 0.03)
CASES = (DOWN, DOWN_ALONE, DOWN_OF_FEW, LEVEL, LEVEL_ALONE, UP_A_LITTLE, UP)


def is_far(trail: Trail) -> bool:
    return trail.quality < -FAR - 1e-9


def rows(trails: dict[Case, list[Trail]]) -> Iterator[Row]:
    for case in (DOWN, DOWN_ALONE, DOWN_OF_FEW):
        found = trails[case]
        name = case.name if case is DOWN else f"{DOWN.name}, {case.name.removeprefix('the same, ')}"
        far = sum(map(is_far, found))
        what = f"{name}: further than {FAR:g} below the start at the end"
        if case is DOWN:
            yield from errors(what, far, len(found), ALLOWED)
        else:
            yield Row(what, far / len(found), f"of {len(found)} trials")
        yield Row(f"{name}: quality at the end", float(np.mean([each.quality for each in found])), "mean change")
    for case in (LEVEL, LEVEL_ALONE, UP_A_LITTLE, UP):
        found = trails[case]
        name = f"{LEVEL.name}, against the live version alone" if case is LEVEL_ALONE else case.name
        tried = STEPS * len(found)
        yield Row(f"{name}: canaries refused", sum(each.refused for each in found) / tried, f"of {tried} canaries")
        yield Row(f"{name}: taken back later", sum(each.returned for each in found) / tried, f"of {tried} canaries")
        yield Row(f"{name}: quality at the end", float(np.mean([each.quality for each in found])), "mean change")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = range(parser.parse_args().trials)
    trails = {case: [trail(case, trial) for trial in track(trials, description=case.name)] for case in CASES}
    report("ratchet_trials", list(rows(trails)))


if __name__ == "__main__":
    main()
