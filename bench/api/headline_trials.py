"""Changes of quality whose size is known: how soon the first line of the console says them, and how often it is wrong.

    python -m bench headline_trials [--trials 200]

The verdicts are the product's own, looked at after every 20 rewarded turns. Users are those of
`bench.releases.rollback_trials`, two hundred of them. The first version answers as many turns as `release.first_turns`
asks for."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.progress import track

from api.operator.figures.comparison import compare
from api.operator.figures.improvement import BASE_NEEDED, MOST_TURNS, NEEDED
from api.operator.figures.lately import MOST, against_the_best
from bench.releases import rollback_trials as world
from bench.releases.rollback_trials import errors
from bench.table import Row, report
from core.settings import ReleaseSettings

TRIALS = 200
USERS = 200
FIRST, TURNS, LOOK_TURNS = ReleaseSettings().first_turns, 5000, 20
QUALITY, SOON_TURNS, ALLOWED, HALF = 0.5, 300, 0.05, 0.5
FALLS_AFTER, TURNS_PER_S, FALL_S = 2000, 20, 60
_SEED = 23


@dataclass(frozen=True)
class Turn:
    user_id: str
    session_id: str
    value: float
    workload: str = "chat"


def turns(trial: int, count: int, changes: Sequence[tuple[int, float]]) -> list[Turn]:
    """Make turns, the oldest first; each of `changes` moves the quality from a turn on."""
    rng = np.random.default_rng((_SEED, trial))
    activity = rng.lognormal(0, world.ACTIVITY_SPREAD, USERS)
    likes = rng.normal(0, world.USER_SPREAD, USERS)
    session = np.repeat(np.arange(count), rng.geometric(1 / world.SESSION_TURNS, count))[:count]
    user = rng.choice(USERS, count, p=activity / activity.sum())[session]
    chance = QUALITY + likes[user] + rng.normal(0, world.SESSION_SPREAD, count)[session]
    for first, change in changes:
        chance[first:] += change
    good = rng.random(count) < np.clip(chance, 0, 1)
    return [
        Turn(str(who), str(what), world.ACCEPTED if is_good else world.REJECTED)
        for who, what, is_good in zip(user, session, good, strict=True)
    ]


def said(trial: int, change: float, most: int, first: int = FIRST) -> tuple[int | None, str | None]:
    """Return after how many turns it is said that the later versions are better or worse, and which; None: never."""
    told = turns(trial, first + most, [(first, change)])
    for end in range(first + LOOK_TURNS, first + most + 1, LOOK_TURNS):
        ours = told[max(first, end - MOST_TURNS) : end]
        if len(ours) >= NEEDED and first >= BASE_NEEDED:
            verdict = compare(ours, told[:first]).verdict
            if verdict in ("better", "worse"):
                return end, verdict
    return None, None


def fallen(trial: int, fall: float, most: int) -> int | None:
    """Return how many turns after a fall the newest are said to be worse than the best; None: never."""
    told = turns(trial, FALLS_AFTER + most, [(FALLS_AFTER, -fall)])
    for end in range(2 * LOOK_TURNS, len(told) + 1, LOOK_TURNS):
        found = against_the_best(told[max(0, end - MOST) : end][::-1])
        if found is not None and found[0].verdict == "worse":
            return end - FALLS_AFTER
    return None


def rows(trials: range) -> Iterator[Row]:
    equal = [said(trial, 0.0, TURNS)[0] for trial in track(trials, description="equal to the first")]
    wrong = sum(after is not None for after in equal)
    yield from errors(f"{TURNS:,} turns as good as the first version's: better or worse", wrong, len(equal), ALLOWED)
    for change in (0.4, 0.2, -0.2, -0.4):
        name = f"{change:+g} of quality"
        found = [said(trial, change, TURNS) for trial in track(trials, description=name)]
        right = "better" if change > 0 else "worse"
        soon = [after for after, verdict in found if after is not None and verdict == right and after <= SOON_TURNS]
        share = len(soon) / len(found)
        yield Row(f"{name}: said within {SOON_TURNS} turns", share, "share", goal=HALF, holds=share >= HALF)
        ends = [TURNS if after is None or verdict != right else after for after, verdict in found]
        yield Row(f"{name}: turns until then, median", float(np.median(ends)), "turns")
    level = [fallen(trial, 0.0, TURNS - FALLS_AFTER) for trial in track(trials, description="one quality")]
    wrong = sum(after is not None for after in level)
    yield from errors(f"{TURNS:,} turns of one quality: worse than the best", wrong, len(level), ALLOWED)
    found_ = [fallen(trial, 0.2, TURNS - FALLS_AFTER) for trial in track(trials, description="a fall of 0.2")]
    most = TURNS_PER_S * FALL_S
    share = sum(after is not None and 0 < after <= most for after in found_) / len(found_)
    yield Row(f"a fall of 0.2: said within {most:,} turns", share, "share", goal=0.95, holds=share >= 0.95)
    yield Row(
        "a fall of 0.2: turns until then, median",
        float(np.median([TURNS if after is None else after for after in found_])),
        "turns",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    report("headline_trials", list(rows(range(parser.parse_args().trials))))


if __name__ == "__main__":
    main()
