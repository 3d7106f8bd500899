"""The fate of canaries in small crowds: a day of few users, with a version that is worse, and with one that is not.

    python -m bench crowd_trials [--trials 200]

Assignment, evidence and verdict are the product's, asked a hundred times a day; users are those of
`bench.releases.rollback_trials`, with thirty turns a day each on the average, or sixty. `as it was`: users stay in
their arms, as in larger crowds."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.progress import track

from bench.releases import rollback_trials as world
from bench.releases.rollback_trials import errors
from bench.table import Row, report
from core.ids import InferenceId
from core.settings import CanarySettings
from serving.releases.canaries.assignment import Shares, assign, salt_at
from serving.releases.canaries.crowd import crowd_of
from serving.releases.canaries.evidence import RewardEvidence
from serving.releases.canaries.verdict import judge, judge_few

SETTINGS = CanarySettings()
TRIALS = 200
CROWDS = {(20, 30): 0.10, (20, 60): 0.10, (50, 30): 0.05, (200, 30): 0.02}
"""The share of worse versions that may be live after a day, by users and the mean of their turns a day."""
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


def is_taken_back(case: Case, trial: int) -> bool:
    rng = np.random.default_rng((_SEED, trial, case.users, case.turns))
    crowd = crowd_of(case.users if case.switches else 10**6, case.users * case.turns, SETTINGS)
    rewards = RewardEvidence(SETTINGS.maturity_s)
    turns = sorted(_turns(rng, case.users, case.turns))
    every = max(1, len(turns) // LOOKS)
    for number, (at_s, user, chance) in enumerate(turns, start=1):
        salt = salt_at(f"{trial}", at_s, crowd.switch_s)
        arm, _ = assign(Shares(crowd.share, 0.0, canary_salt=salt), str(user))
        accepted = rng.random() < chance + (case.quality if arm == "canary" else 0.0)
        turn = InferenceId(str(number))
        rewards.turn(turn, str(user), arm, at_s)
        if rng.random() >= world.SILENT:
            rewards.reward(turn, world.ACCEPTED if accepted else world.REJECTED)
        if number % every == 0 or number == len(turns):
            is_last = number == len(turns)
            now_s = SETTINGS.horizon_s if is_last else at_s
            rewards.ripen(now_s + SETTINGS.maturity_s * is_last)
            arms = rewards.arm("canary"), rewards.arm("live")
            found = (judge if crowd.switch_s is None else judge_few)(*arms, now_s, SETTINGS)
            if found.action != "wait":
                return found.action == "rollback"
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


def rows(lost: dict[Case, int], trials: int) -> Iterator[Row]:
    for (users, turns), missed in CROWDS.items():
        whose = f"{users} users of {turns} turns"
        worse, equal = Case(users, turns, WORSE), Case(users, turns)
        yield from errors(f"{whose}, worse by {-WORSE:g}: live after a day", trials - lost[worse], trials, missed)
        before = 1 - lost[replace(worse, switches=False)] / trials
        yield Row(f"{whose}, worse by {-WORSE:g}: live after a day, as it was", before, f"of {trials} trials")
        yield from errors(f"{whose}, equal: lost", lost[equal], trials, LOST)
        before = lost[replace(equal, switches=False)] / trials
        yield Row(f"{whose}, equal: lost, as it was", before, f"of {trials} trials")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    cases = [
        Case(*crowd, quality, switches) for crowd in CROWDS for quality in (WORSE, 0.0) for switches in (True, False)
    ]
    lost = {
        case: sum(is_taken_back(case, trial) for trial in track(range(trials), description=str(case))) for case in cases
    }
    report("crowd_trials", list(rows(lost, trials)))


if __name__ == "__main__":
    main()
