"""An agent learns from rollouts alone: the shipped model works on tasks in sandboxes, and their tests are its reward.

    python -m bench agent_learns [--model tiny] [--seeds 0 1 2 3 4] [--seconds 120]

Each seed has a service of its own with its learner, and tasks of its own: functions with one wrong line, which the
model reads, changes and tests with the tools of a line editor (harness `onward-lines`). It works on the held-out tasks,
whose turns say `x-onward-learn: false`; then for `--seconds` on others, from whose rewards the learner makes versions
that are swapped in as it goes; then on the held-out ones again. Nobody else asks the service anything. Held-out tasks
have other requests (repository, name or arguments) than the taught ones, and are of the same twelve functions.

`--model smollm2` is SmolLM2 with the shipped model's template, which shows it tools. It was never taught to call any,
so its answers are calls by the service's grammar, and its tasks do not say what is wrong, but the calls that mend it
(`bench.environments.pupils`): what it has to learn is to make these calls, and to end there.

An episode that the machine failed has no reward; it is tried again, and a task counts where it was judged both times.
The gain's interval is Student's over the seeds. Runs are merged by model and seed into
`bench/results/agent_learns_runs.json`."""

import argparse
import asyncio
import json
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.environments.pupils import PUPILS, Pupil
from bench.paired import mean_and_reach
from bench.table import RESULTS, Row, commit, report
from environments.harness.agent import Agent
from environments.harness.harness import Endpoint
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import Journal
from environments.rollouts.plan import Plan, TaskSet
from environments.rollouts.run import here, run_rollouts
from environments.rollouts.workshop import Source, Workshop, means_of, task_sets
from onward.commands.demo import running_service
from simulator.tasks.folders import write_folders

RUNS: Final = RESULTS / "agent_learns_runs.json"
PREPARED: Final = Path(__file__).resolve().parents[2] / "build" / "agent_learns"  # images, kept for the next run
SETTLED_S: Final = 5.0  # after the last reward, for the version that it makes
Run = dict[str, Any]


@dataclass
class Seen:
    """How attempts ended."""

    results: list[EpisodeResult] = field(default_factory=list)

    def began(self, _: Episode) -> None: ...

    def ended(self, result: EpisodeResult, *, again: bool) -> None:
        self.results.append(result)

    @property
    def rewards(self) -> dict[str, float]:
        """Return the reward of each task that was judged; of several, the mean."""
        by_task: dict[str, list[float]] = {}
        for each in self.results:
            if each.reward is not None:
                by_task.setdefault(each.episode.task, []).append(each.reward)
        return {task: statistics.fmean(rewards) for task, rewards in by_task.items()}

    @property
    def failures(self) -> Counter[str]:
        """Return how many attempts the machine failed, by the part that did, and how many were out of time."""
        return Counter(each.part or each.verdict for each in self.results if each.verdict != "judged")

    @property
    def failed_with_reward(self) -> int:
        return sum(each.verdict == "infrastructure" and each.reward is not None for each in self.results)

    @property
    def versions(self) -> set[int | str]:
        return {version for each in self.results if each.work for version in each.work.policy_versions}


@dataclass(frozen=True)
class School:
    """Where the model works: a service, tasks, and a folder for journals."""

    url: str
    workshop: Workshop
    pupil: Pupil
    folder: Path

    async def roll(self, tasks: TaskSet, name: str, *, learn: bool, seconds: float | None = None) -> Seen:
        """Work on each task once or, for so many seconds, on and on."""
        means = replace(means_of(self.workshop, self.pupil.parallel), harness=(harness := Agent(self.pupil.agent)))
        headers = {"x-onward-workload": self.workshop.workload, "x-onward-priority": "low"}
        headers["x-onward-learn"] = str(learn).lower()
        plan = Plan(
            sets=(tasks,),
            harness=f"{harness.name}@{harness.version}",
            endpoint=Endpoint(self.url + "/v1", model=self.pupil.model, headers=headers),
            budget=self.pupil.budget,
            tries=1 if seconds is None else None,
            parallel=self.pupil.parallel,
        )
        seen, ending = Seen(), asyncio.Event()
        journal = Journal(self.folder / f"{name}.db")
        try:
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, ending.set)
            await run_rollouts(plan, journal, here(plan, means), seen, None, ending)
        finally:
            journal.close()
            await means.sandboxes.close()
        return seen


def workshop_of(tasks: Path, prepared: Path = PREPARED) -> Workshop:
    sources = (Source("taught", (tasks / "taught",)), Source("held-out", (tasks / "held-out",)))
    return Workshop(sources, prepared, "onward-lines", workload="agent", images={"*": "machine"})


async def learn(school: School, seconds: float) -> Run:
    """Examine, roll out, and examine again."""
    taught, held_out = await task_sets(school.workshop)
    before = await school.roll(held_out, "before", learn=False)
    began_s = time.monotonic()
    rolled = await school.roll(taught, "taught", learn=True, seconds=seconds)
    rolled_s = time.monotonic() - began_s
    await asyncio.sleep(SETTLED_S)
    after = await school.roll(held_out, "after", learn=False)
    return {**figures(before, rolled, after), "seconds": rolled_s}


def figures(before: Seen, rolled: Seen, after: Seen) -> Run:
    both = sorted(before.rewards.keys() & after.rewards.keys())
    start, end = (statistics.fmean(seen.rewards[task] for task in both) for seen in (before, after))
    rewards = [each.reward for each in rolled.results if each.reward is not None]
    seen = (before, rolled, after)
    return {
        "held_out": len(both),
        "not_judged": len(before.rewards.keys() ^ after.rewards.keys()),
        "passed_start": start,
        "passed_end": end,
        "gain": end - start,
        "episodes": len(rewards),
        "passed_taught": statistics.fmean(rewards),
        "turns": sum(len(each.work.inference_ids) for each in rolled.results if each.work is not None),
        "versions": len(rolled.versions | after.versions),
        "failures": dict(sum((each.failures for each in seen), Counter[str]())),
        "failed_with_reward": sum(each.failed_with_reward for each in seen),
    }


def run(model: str, seed: int, seconds: float, counts: Mapping[str, int], folder: Path) -> Run:
    pupil = PUPILS[model]
    write_folders(folder / "tasks", seed=seed, is_told=pupil.is_told, **counts)
    began_s = time.monotonic()
    with running_service(folder / "service", pupil.settings(seed, folder)) as urls:
        school = School(urls[0], workshop_of(folder / "tasks"), pupil, folder)
        made = asyncio.run(learn(school, seconds))
    told = {"model": model, "seed": seed, "commit": commit(), "load": os.getloadavg()[0]}
    return {**told, **made, "whole_s": time.monotonic() - began_s}


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Yield the rows of each model that has runs; the names of those of another than the shipped one begin with it."""
    for model in PUPILS:
        of_model = [each for each in runs if each["model"] == model]
        for row in rows_of(of_model) if of_model else ():
            yield row if model == "tiny" else replace(row, metric=f"{model}: {row.metric}")


def rows_of(runs: Sequence[Run]) -> Iterator[Row]:
    made = ", ".join(sorted({each["commit"] for each in runs}))
    of_all = f"{len(runs)} seeds, {sum(each['held_out'] for each in runs)} held-out tasks in all"

    def over(name: str) -> float:
        return statistics.fmean(each[name] for each in runs)

    gains = [each["gain"] for each in runs]
    mean, reach = mean_and_reach(gains)
    low, high = mean - reach, mean + reach
    yield Row("held-out tasks passed before", over("passed_start"), "share", of_all, commit=made)
    yield Row("held-out tasks passed after", over("passed_end"), "share", of_all, commit=made)
    yield Row("gain, mean", mean, "share", of_all, commit=made)
    yield Row("gain, the least of a seed", min(gains), "share", of_all, commit=made)
    enough = low > 0 and len(runs) >= 5
    lower = low if math.isfinite(low) else None
    yield Row("lower end of the gain's 95 % interval over seeds", lower, "share", of_all, lower, 0.0, enough, made)
    yield Row("upper end", high if math.isfinite(high) else None, "share", of_all, commit=made)
    zeros = sum(each["failed_with_reward"] for each in runs)
    yield Row("infrastructure failures with a reward", zeros, "attempts", "none", zeros, 0, zeros == 0, made)
    failures = sum((Counter(each["failures"]) for each in runs), Counter[str]())
    yield Row("attempts without a judgement", failures.total(), f"attempts: {dict(failures)}", commit=made)
    yield Row("held-out tasks not judged both times", sum(each["not_judged"] for each in runs), "tasks", commit=made)
    yield Row("rollouts", over("seconds"), "s a seed", commit=made)
    yield Row("episodes judged", over("episodes"), "a seed", commit=made)
    yield Row("turns", over("turns"), "a seed", commit=made)
    yield Row("versions that answered", over("versions"), "a seed", commit=made)


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(PUPILS), default="tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--seconds", type=float, default=120.0, help="of rollouts")
    parser.add_argument("--taught", type=int, default=64, help="tasks that are learned from")
    parser.add_argument("--held-out", type=int, default=48, help="tasks that are not")
    asked = parser.parse_args()
    counts = {"taught": asked.taught, "held_out": asked.held_out}
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory(prefix="onward-agent-learns-") as folder:
            made = run(asked.model, seed, asked.seconds, counts, Path(folder))
        runs = [*(each for each in known() if (each["model"], each["seed"]) != (asked.model, seed)), made]
        RUNS.write_text(json.dumps(sorted(runs, key=lambda each: (each["model"], each["seed"])), indent=1) + "\n")
    report("agent_learns", list(rows(known())))


if __name__ == "__main__":
    main()
