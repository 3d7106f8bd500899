"""How soon the monitor of fidelity sees a mismatch of the simulation, and how often it sees one that is not there.

    python -m bench fidelity

Sessions of users and simulated ones take turns; the monitor looks after every five simulated ones. A clean stream has
1,000 simulated episodes for each seed, whose sides differ in what the work is about and how long requests are. A
planted mismatch begins after 60 clean episodes; counted are the simulated episodes from there to the alarm, by seed."""

import random
import statistics
import time
from collections.abc import Iterator

from bench.fidelity.sessions import MISMATCHES, SAME, Harness, Side
from bench.table import Row, report
from core.reward_spec import DerivedSpec
from scoring.monitors import Window, watch
from scoring.monitors.fidelity import THRESHOLD, simulation_shows
from scoring.monitors.watched import WatchedTurn
from scoring.monitors.window import Finding

SEEDS = range(10)
CLEAN_EPISODES = 1000
CLEAN_BEFORE = 60
LOOK_EVERY = 5
WITHIN = 50
WINDOW_TURNS = 300  # as `monitors.window_turns` has it
_DERIVED = DerivedSpec()


class Stream:
    """Two sides, and the windows over them."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.users, self.simulation = (
            Side(environment, random.Random(rng.random())) for environment in ("production", "simulated")
        )
        self._turns: tuple[list[WatchedTurn], list[WatchedTurn]] = ([], [])
        self.looks_s: list[float] = []

    def episodes(self, count: int, harness: Harness) -> Iterator[Finding | None]:
        """Yield what the monitor finds, after every so many simulated episodes."""
        self.simulation.harness = harness
        for number in range(1, count + 1):
            for side, turns in zip((self.simulation, self.users), self._turns, strict=True):
                turns += [watch(turn, _DERIVED) for turn in side.session()]
                del turns[:-WINDOW_TURNS]
            if number % LOOK_EVERY == 0:
                began_s = time.perf_counter()
                yield simulation_shows(Window.of(*self._turns))
                self.looks_s.append(time.perf_counter() - began_s)


def false_alarms(seed: int) -> tuple[int, float, float]:
    """Return the false alarms of a clean stream, the highest lower bound of the AUC, and the seconds of a look."""
    stream = Stream(seed)
    found = [finding for finding in stream.episodes(CLEAN_EPISODES, SAME) if finding is not None]
    highest = max(finding.figures["low"] for finding in found)
    return sum(finding.trips for finding in found), highest, statistics.median(stream.looks_s)


def episodes_to_alarm(seed: int, mismatch: Harness) -> tuple[int, str] | None:
    """Return after how many mismatched episodes there is an alarm, and what it says first; None: there is none."""
    stream = Stream(seed)
    for finding in stream.episodes(CLEAN_BEFORE, SAME):
        assert finding is None or not finding.trips
    for looks, finding in enumerate(stream.episodes(4 * WITHIN, mismatch), 1):
        if finding is not None and finding.trips:
            return looks * LOOK_EVERY, next(name for name in finding.figures if "simulated:" in name)
    return None


def main() -> None:
    rows = []
    clean = [false_alarms(seed) for seed in SEEDS]
    wrong, episodes = sum(count for count, _, _ in clean), len(SEEDS) * CLEAN_EPISODES
    rows.append(
        Row.at_most(f"false alarms, clean, {len(SEEDS)} seeds", wrong, "alarms", f"{episodes} episodes", wrong, 0)
    )
    rows.append(
        Row(
            "highest lower bound of a clean stream",
            max(highest for _, highest, _ in clean),
            "AUC",
            f"threshold {THRESHOLD}",
        )
    )
    rows.append(Row("a look at one workload", statistics.median(took for _, _, took in clean) * 1000, "ms"))
    for name, mismatch in MISMATCHES.items():
        found = [episodes_to_alarm(seed, mismatch) for seed in SEEDS]
        seen = [alarm for alarm in found if alarm is not None]
        slowest = max(count for count, _ in seen) if len(seen) == len(found) else 4 * WITHIN
        counts = ", ".join(str(count) for count, _ in seen)
        print(f"{name}: alarm after {counts} episodes; {seen[0][1] if seen else 'never'}")
        rows.append(
            Row.at_most(f"{name}: alarm, slowest of {len(SEEDS)} seeds", slowest, "episodes", "goal", slowest, WITHIN)
        )
    report("fidelity", rows)


if __name__ == "__main__":
    main()
