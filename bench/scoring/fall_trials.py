"""Falls of quality whose size is known: how soon the monitor of the level sees them, and how often it sees none.

    python -m bench fall_trials [--trials 100]

Windows and monitor are the product's own, looked at after every 25 ripe turns. Users are those of
`bench.releases.rollback_trials`; what they say is known when a turn ripens."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.progress import track

from bench.releases import rollback_trials as world
from bench.releases.rollback_trials import errors
from bench.table import Row, report
from core.ids import InferenceId, Namespace, SessionId, base_ref
from core.settings import MonitorSettings
from scoring.monitors import WatchedTurn
from scoring.monitors.level import worse_than_best
from scoring.watching.turns import WatchedTurns
from scoring.watching.workload import Workload

TRIALS = 100
BEFORE_TURNS, AFTER_TURNS, LOOK_TURNS = 1500, 3000, 25
FALL = 0.15  # of quality
USERS = (20, 50, 200)
ALLOWED = 0.05
QUALITY = 0.6
_SEED = 11


@dataclass(frozen=True)
class Case:
    users: int
    fall: float


def seen_after(case: Case, trial: int) -> int | None:
    """Return how many turns after the fall the monitor trips, negative where it did before; None: it never does."""
    workload = Workload(WatchedTurns(), MonitorSettings(), maturity_s=0.0, roles={})
    for number, turn in enumerate(turns(case, trial), start=1):
        workload.add(turn)
        if number % LOOK_TURNS == 0:
            workload.pass_time(turn.at_s, turn.at_s)
            found = worse_than_best(workload.window(ripe=True))
            if found is not None and found.trips:
                return number - BEFORE_TURNS
    return None


def turns(case: Case, trial: int) -> Iterator[WatchedTurn]:
    rng = np.random.default_rng((_SEED, trial, case.users))
    activity = rng.lognormal(0, world.ACTIVITY_SPREAD, case.users)
    likes = rng.normal(0, world.USER_SPREAD, case.users)
    count = BEFORE_TURNS + AFTER_TURNS
    session = np.repeat(np.arange(count), rng.geometric(1 / world.SESSION_TURNS, count))[:count]
    user = rng.choice(case.users, count, p=activity / activity.sum())[session]
    chance = QUALITY + likes[user] + rng.normal(0, world.SESSION_SPREAD, count)[session]
    chance[BEFORE_TURNS:] -= case.fall
    accepted = rng.random(count) < np.clip(chance, 0, 1)
    for number in range(count):
        yield watched(number, int(user[number]), world.ACCEPTED if accepted[number] else world.REJECTED)


def watched(number: int, user: int, value: float) -> WatchedTurn:
    return WatchedTurn(
        inference_id=InferenceId(str(number)),
        session_id=SessionId(str(number)),
        namespace=Namespace("default"),
        unit=str(user),
        workload="write",
        purpose="turn",
        version=base_ref(1),
        arm="live",
        environment="production",
        at_s=float(number),
        tokens=40,
        seconds=1.0,
        calls=0,
        offered=False,
        edits=False,
        tests=False,
        searches=False,
        malformed=False,
        asks=False,
        silent=False,
        refuses=False,
        repetition=0.0,
        surprisal=0.4,
        value=value,
    )


def rows(seen: dict[Case, list[int | None]]) -> Iterator[Row]:
    for users in USERS:
        level, fallen = seen[Case(users, 0.0)], seen[Case(users, FALL)]
        wrong = sum(after is not None for after in level)
        what = f"{users} users, {BEFORE_TURNS + AFTER_TURNS:,} turns of one quality: an alarm"
        yield from errors(what, wrong, len(level), ALLOWED)
        found = [after for after in fallen if after is not None and after > 0]
        yield Row(
            f"{users} users, {FALL:g} worse: an alarm within {AFTER_TURNS:,} turns", len(found) / len(fallen), "share"
        )
        yield Row(f"{users} users, {FALL:g} worse: turns until then, median", float(np.median(found)), "turns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = range(parser.parse_args().trials)
    cases = [Case(users, fall) for users in USERS for fall in (0.0, FALL)]
    seen = {
        case: [
            seen_after(case, trial) for trial in track(trials, description=f"{case.users} users, {case.fall:g} worse")
        ]
        for case in cases
    }
    report("fall_trials", list(rows(seen)))


if __name__ == "__main__":
    main()
