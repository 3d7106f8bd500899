"""The fate of canaries in small crowds: a day of few users, with a version that is worse, and with one that is not.

    python -m bench crowd_trials [--trials 200]

Assignment, evidence and verdict are the product's, asked a hundred times a day; users are those of
`bench.releases.rollback_trials`, with thirty turns a day each on the average, or sixty. `as it was`: users stay in
their arms, as in larger crowds.

A lane that follows the learner has a version more every two hours, or every six, and quality falls in the third that
follows: is one of those that fell certified? Where none falls, it says how far on in its lane the certified one is."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.progress import track

from bench.releases import rollback_trials as world
from bench.releases.rollback_trials import errors
from bench.table import Row, report
from core.ids import InferenceId, base_ref
from core.settings import CanarySettings
from serving.releases.canaries.assignment import Shares, assign, salt_at
from serving.releases.canaries.crowd import certified, crowd_of
from serving.releases.canaries.evidence import RewardEvidence
from serving.releases.canaries.verdict import judge, judge_few

SETTINGS = CanarySettings()
TRIALS = 200
CROWDS = {(20, 30): 0.10, (20, 60): 0.10, (50, 30): 0.05, (200, 30): 0.02}
"""The share of worse versions that may be live after a day, by users and the mean of their turns a day."""
FOLLOWS_H = (2, 6)
FALL = 3
"""The follower in which quality falls."""
LOST = 0.05
WORSE = -0.15
LOOKS = 100
DAY_S = 86400.0
_SEED = 21


@dataclass(frozen=True)
class Case:
    users: int
    turns: int = 30  # of a user a day, on the average; far more of some than of others
    quality: float = 0.0
    switches: bool = True
    follows_h: float = 24  # how often the lane follows the learner
    falls_at: int = 0  # the follower from which on quality is as above


@dataclass(frozen=True)
class Fate:
    """What a lane ended with. `certified`: how many versions were before that one in its lane; None: taken back."""

    certified: int | None
    lane: int


def is_taken_back(case: Case, trial: int) -> bool:
    return fate_of(case, trial).certified is None


def fate_of(case: Case, trial: int) -> Fate:
    rng = np.random.default_rng((_SEED, trial, case.users, case.turns))
    crowd = crowd_of(case.users if case.switches else 10**6, case.users * case.turns, SETTINGS)
    rewards, lane = RewardEvidence(SETTINGS.maturity_s), RewardEvidence(SETTINGS.maturity_s)
    turns = sorted(_turns(rng, case.users, case.turns))
    every = max(1, len(turns) // LOOKS)
    for number, (at_s, user, chance) in enumerate(turns, start=1):
        salt = salt_at(f"{trial}", at_s, crowd.switch_s)
        arm, _ = assign(Shares(crowd.share, 0.0, canary_salt=salt), str(user))
        follower = int(at_s / (3600 * case.follows_h))
        quality = case.quality if arm == "canary" and follower >= case.falls_at else 0.0
        accepted = rng.random() < chance + quality
        turn = InferenceId(str(number))
        rewards.turn(turn, str(user), arm, at_s)
        if arm == "canary":
            lane.turn(turn, str(user), f"{follower}", at_s)
        if rng.random() >= world.SILENT:
            value = world.ACCEPTED if accepted else world.REJECTED
            rewards.reward(turn, value)
            lane.reward(turn, value)
        if number % every == 0 or number == len(turns):
            is_last = number == len(turns)
            now_s = SETTINGS.horizon_s if is_last else at_s
            for evidence in (rewards, lane):
                evidence.ripen(now_s + SETTINGS.maturity_s * is_last)
            arms = rewards.arm("canary"), rewards.arm("live")
            found = (judge if crowd.switch_s is None else judge_few)(*arms, now_s, SETTINGS)
            if found.action == "rollback":
                return Fate(None, follower + 1)
            if found.action == "promote":
                versions = [(base_ref(place), lane.arm(f"{place}")) for place in range(follower + 1)]
                return Fate(certified(versions, rewards.arm("live")).version, follower + 1)
    raise AssertionError("the horizon is the last look")


def _turns(rng: np.random.Generator, users: int, of_each: int) -> Iterator[tuple[float, int, float]]:
    """Yield (when, user, probability to accept) of a day."""
    activity = rng.lognormal(0, world.ACTIVITY_SPREAD, users)
    likes = rng.normal(0, world.USER_SPREAD, users)
    for _ in range(rng.poisson(users * of_each / world.SESSION_TURNS)):
        user = int(rng.choice(users, p=activity / activity.sum()))
        begins_s = rng.uniform(0, DAY_S - 600)
        chance = world.QUALITY + likes[user] + rng.normal(0, world.SESSION_SPREAD)
        for turn in range(rng.geometric(1 / world.SESSION_TURNS)):
            yield begins_s + turn * world.SESSION_GAP_S, user, float(np.clip(chance, 0, 1))


def rows(fates: dict[Case, list[Fate]], trials: int) -> Iterator[Row]:
    lost = {case: sum(fate.certified is None for fate in found) for case, found in fates.items()}
    for (users, turns), missed in CROWDS.items():
        whose = f"{users} users of {turns} turns"
        worse, equal = Case(users, turns, WORSE), Case(users, turns)
        yield from errors(f"{whose}, worse by {-WORSE:g}: live after a day", trials - lost[worse], trials, missed)
        before = 1 - lost[replace(worse, switches=False)] / trials
        yield Row(f"{whose}, worse by {-WORSE:g}: live after a day, as it was", before, f"of {trials} trials")
        yield from errors(f"{whose}, equal: lost", lost[equal], trials, LOST)
        before = lost[replace(equal, switches=False)] / trials
        yield Row(f"{whose}, equal: lost, as it was", before, f"of {trials} trials")
        for hours in FOLLOWS_H:
            falls, stays = _lanes(users, turns, hours)
            which = f"{whose}, a follower every {hours} h"
            passed = sum(fate.certified is not None and fate.certified >= FALL for fate in fates[falls])
            yield from errors(f"{which}, the third falls by {-WORSE:g}: certified", passed, trials, missed)
            yield Row(
                f"{which}, the third falls by {-WORSE:g}: taken back", lost[falls] / trials, f"of {trials} trials"
            )
            places = [fate.certified / max(1, fate.lane - 1) for fate in fates[stays] if fate.certified is not None]
            yield Row(
                f"{which}, none falls: place of the certified", float(np.mean(places)), "0: the first, 1: the newest"
            )


def _lanes(users: int, turns: int, hours: float) -> tuple[Case, Case]:
    """Return a lane in which quality falls, and one in which it does not."""
    return Case(users, turns, WORSE, follows_h=hours, falls_at=FALL), Case(users, turns, follows_h=hours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    cases = [
        Case(*crowd, quality, switches) for crowd in CROWDS for quality in (WORSE, 0.0) for switches in (True, False)
    ]
    cases += [case for crowd in CROWDS for hours in FOLLOWS_H for case in _lanes(*crowd, hours)]
    fates = {case: [fate_of(case, trial) for trial in track(range(trials), description=str(case))] for case in cases}
    report("crowd_trials", list(rows(fates, trials)))


if __name__ == "__main__":
    main()
