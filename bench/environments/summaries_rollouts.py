"""Summaries against truncation by a real model, in rollouts: the harness, its tools, sandboxes, and a learning service.

    python -m bench summaries_rollouts [--seeds 0 1 2 3 4] [--turns 256]

The tasks (`bench.environments.long_world`) want two words out of two long files in a third, and the context has not the
room for both files. The model is the shipped one, which was taught neither such tasks nor to write a summary: it is
midtrained (770 steps) on single contexts of such work, of both ways, in whose summaries a tenth to a fifth of the words
is drawn by luck. Both ways begin with it. Each seed has tasks of its own, and a service with its learner for each way:

- *truncation*: at the limit the oldest answers with their results are forgotten;
- *summaries*: at the limit the model is asked for a summary, which shares its session's reward.

Both work on tasks until as many turns are rewarded, and the learner makes an update of each 32. Then they work on
held-out tasks, whose turns say `x-onward-learn: false`. By luck a word that is not known is right one time in eight.
The difference's interval is Student's over the seeds. Runs are merged by way and seed into
`bench/results/summaries_runs.json`."""

import argparse
import asyncio
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from bench.environments.agent_learns import Seen
from bench.environments.long_world import CALLS, OFFERED, write_conversations, write_tasks
from bench.environments.summary_rows import OF_ROLLOUTS, report_beside
from bench.paired import mean_and_reach
from bench.table import RESULTS, Row, commit
from environments.harness.agent import Agent
from environments.harness.agent import Settings as AgentSettings
from environments.harness.harness import Budget, Endpoint
from environments.rollouts.episode import EpisodeResult
from environments.rollouts.journal import Journal
from environments.rollouts.plan import Plan, TaskSet
from environments.rollouts.run import here, run_rollouts
from environments.rollouts.workshop import Source, Workshop, means_of, task_sets
from onward.commands.demo import running_service
from onward.directory.layout import SHIPPED_MODEL

RUNS: Final = RESULTS / "summaries_runs.json"
BUILD: Final = Path(__file__).resolve().parents[2] / "build" / "summaries_rollouts"  # kept for the next run
MODEL_NAME: Final = "onward-tiny"
CONVERSATIONS: Final = 4000
_UNSUMMED: Final = ("first, unsummed", "rest, unsummed")
STAGES: Final = (  # of midtraining: steps, the share of words in summaries that are right, and kinds of contexts
    (450, 0.8, ("first", "second", "third") * 2 + _UNSUMMED),
    (320, 0.9, ("first", "second") * 3 + ("third", *_UNSUMMED)),
)
MIDTRAINING: Final = ("--row-tokens", "512", "--rows", "4", "--learning-rate", "0.003", "--seed", "0")
CONTEXT_TOKENS: Final = 500  # that the service takes: both long files with the calls that read them have more
LIMIT_TOKENS: Final = 396  # at which the harness, which estimates what it was not told, takes the context for full
ANSWER_TOKENS: Final = 40
SUMMARY_TOKENS: Final = 10
BATCH_TURNS: Final = 32
PARALLEL: Final = 4
SETTLED_S: Final = 5.0  # after the last reward, for the update that it makes
WAYS: Final[Mapping[str, Literal["truncate", "summarise"]]] = {"truncation": "truncate", "summaries": "summarise"}
_UPDATES: Final = re.compile(r"^onward_learner_updates(?:_total)?(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
Run = dict[str, Any]


@dataclass
class Counting(Seen):
    """Notes how attempts ended, and ends the rollouts once so many turns are rewarded."""

    most_turns: float = float("inf")
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self, result: EpisodeResult, *, again: bool) -> None:
        super().ended(result, again=again)
        if self.turns >= self.most_turns:
            self.ending.set()

    @property
    def judged(self) -> list[EpisodeResult]:
        return [each for each in self.results if each.reward is not None]

    @property
    def turns(self) -> int:
        return sum(len(each.work.inference_ids) for each in self.judged if each.work)

    @property
    def right(self) -> float:
        return statistics.fmean(each.reward for each in self.judged if each.reward is not None)


@dataclass(frozen=True)
class School:
    """Where the model works in one of the ways: a service, tasks, and a folder for journals."""

    url: str
    workshop: Workshop
    way: str
    folder: Path

    async def roll(self, tasks: TaskSet, seen: Counting, *, learn: bool) -> None:
        """Work on tasks over and over until `seen` has enough, or once on each where nothing is learned."""
        settings = AgentSettings(
            ANSWER_TOKENS, SUMMARY_TOKENS, tool_set="lines", tools=OFFERED, must_call=True, at_limit=WAYS[self.way]
        )
        means = replace(means_of(self.workshop, PARALLEL), harness=(harness := Agent(settings)))
        headers = {"x-onward-workload": "agent", "x-onward-priority": "low", "x-onward-learn": str(learn).lower()}
        plan = Plan(
            sets=(tasks,),
            harness=f"{harness.name}@{harness.version}",
            endpoint=Endpoint(self.url + "/v1", model=MODEL_NAME, headers=headers),
            budget=Budget(tokens=4000, calls=CALLS, critical_path_seconds=120.0, context_tokens=LIMIT_TOKENS),
            tries=None if learn else 1,
            parallel=PARALLEL,
        )
        journal = Journal(self.folder / f"{tasks.name}.db")
        try:
            await run_rollouts(plan, journal, here(plan, means), seen, None, seen.ending)
        finally:
            journal.close()
            await means.sandboxes.close()

    @property
    def updates(self) -> int:
        """How many the learner has made."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as response:
            return int(sum(map(float, _UPDATES.findall(response.read().decode()))))


async def learn(school: School, turns: int) -> Run:
    """Learn from so many rewarded turns, and be examined."""
    taught, held_out = await task_sets(school.workshop)
    rolled, after = Counting(most_turns=turns), Counting()
    began_s = time.monotonic()
    await school.roll(taught, rolled, learn=True)
    rolled_s = time.monotonic() - began_s
    await asyncio.sleep(SETTLED_S)
    updates = school.updates
    await school.roll(held_out, after, learn=False)
    return {**figures(rolled, after), "updates": updates, "seconds": rolled_s}


def figures(rolled: Counting, after: Counting) -> Run:
    works = [each.work for each in after.judged if each.work]
    early = replace(rolled, results=rolled.judged[: max(1, len(rolled.judged) // 4)])
    return {
        "held_out": len(after.judged),
        "right": after.right,
        "right_early": early.right,
        "episodes": len(rolled.judged),
        "turns": rolled.turns,
        "summaries": statistics.fmean(work.summaries for work in works),
        "tokens": statistics.fmean(work.prompt_tokens + work.output_tokens for work in works),
        "endings": dict(Counter(work.ending for work in works)),
        "failures": dict(rolled.failures + after.failures),
    }


def prepared_model() -> Path:
    """Return the shipped model that was midtrained for these tasks; it is made where it is not there."""
    place, before = BUILD / "model", SHIPPED_MODEL
    if (place / "config.json").exists():
        return place
    BUILD.mkdir(parents=True, exist_ok=True)
    for number, (steps, right, kinds) in enumerate(STAGES):
        corpus, made = BUILD / f"corpus-{number}.jsonl", BUILD / f"stage-{number}"
        write_conversations(corpus, CONVERSATIONS, number, right=right, kinds=kinds)
        command = [sys.executable, "-m", "onward", "midtrain", str(corpus), str(made), "--init", str(before)]
        subprocess.run([*command, "--steps", str(steps), *MIDTRAINING], check=True)
        before = made
    before.rename(place)
    return place


def settings_of(seed: int, model: Path) -> Mapping[str, str]:
    """Return the settings of a service whose learner makes updates of whole batches."""
    return {
        "ONWARD_LEARNER__SEED": str(seed),
        "ONWARD_SERVING__MODEL": str(model),
        "ONWARD_SERVING__MODEL_NAME": MODEL_NAME,
        "ONWARD_SERVING__CONTEXT_LENGTH": str(CONTEXT_TOKENS),
        "ONWARD_LEARNER__BATCH__TURNS": str(BATCH_TURNS),
        "ONWARD_LEARNER__BATCH__MIN_TURNS": str(BATCH_TURNS),
        "ONWARD_LEARNER__BATCH__BACKLOG_TURNS": "4096",  # nothing is dropped
    }


def run(way: str, seed: int, turns: int, held_out: int, folder: Path) -> Run:
    model, tasks = prepared_model(), folder / "tasks"
    write_tasks(tasks, taught=48, held_out=held_out, seed=seed)
    sources = (Source("taught", (tasks / "taught",)), Source("held-out", (tasks / "held-out",)))
    workshop = Workshop(sources, BUILD, "onward-lines", workload="agent", images={"*": "machine"})
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with running_service(folder / "service", settings_of(seed, model)) as urls:
        made = asyncio.run(learn(School(urls[0], workshop, way, folder), turns))
    told = {"way": way, "seed": seed, "commit": commit(), "load": load}
    return {**told, **made, "whole_s": time.monotonic() - began_s}


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Yield the rows of the seeds that have a run in either way."""
    of_way = {way: {each["seed"]: each for each in runs if each["way"] == way} for way in WAYS}
    seeds = sorted(of_way["truncation"].keys() & of_way["summaries"].keys())
    paired = {way: [of_way[way][seed] for seed in seeds] for way in WAYS}
    made = ", ".join(sorted({each["commit"] for each in runs}))
    against = f"{len(seeds)} seeds, {sum(each['held_out'] for each in paired['summaries'])} held-out tasks in all"
    for way in WAYS:
        for row in _rows_of(way, paired[way], against):
            yield replace(row, metric=OF_ROLLOUTS + row.metric, commit=made)
    pairs = zip(paired["summaries"], paired["truncation"], strict=True)
    mean, reach = mean_and_reach([each["right"] - other["right"] for each, other in pairs])
    enough = mean - reach > 0 and len(seeds) >= 5
    low, high = (mean - reach, mean + reach) if math.isfinite(reach) else (None, None)
    for row in (
        Row("gain of summaries over truncation, mean", mean, "share", against),
        Row("least gain of summaries over truncation (95%)", low, "share", against, low, 0.0, enough),
        Row("greatest gain of summaries over truncation (95%)", high, "share", against),
    ):
        yield replace(row, metric=OF_ROLLOUTS + row.metric, commit=made)


def _rows_of(way: str, runs: Sequence[Run], against: str) -> Iterator[Row]:
    def over(name: str) -> float:
        return statistics.fmean(each[name] for each in runs)

    yield Row(f"right, {way}", over("right"), "share of held-out tasks", against)
    yield Row(f"right early on, {way}", over("right_early"), "share of the first quarter of episodes", against)
    yield Row(f"updates, {way}", over("updates"), "a seed", against)
    yield Row(f"rewarded turns, {way}", over("turns"), "a seed", against)
    yield Row(f"tokens of a held-out episode, {way}", over("tokens"), f"of {CONTEXT_TOKENS} in a context", against)
    full = statistics.fmean(each["endings"].get("context", 0) / each["held_out"] for each in runs)
    yield Row(f"ended for want of room, {way}", full, "share of held-out tasks", against)
    if way == "summaries":
        contexts = 1 + over("summaries")
        yield Row.at_least(f"contexts of a held-out episode, {way}", contexts, "", "three", contexts, 3.0)
    failures = sum((Counter(each["failures"]) for each in runs), Counter[str]())
    yield Row(f"attempts without a judgement, {way}", failures.total(), f"attempts: {dict(failures)}", against)


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--turns", type=int, default=256, help="rewarded ones, in each way")
    parser.add_argument("--held-out", type=int, default=32, help="tasks")
    asked = parser.parse_args()
    for seed, way in ((seed, way) for seed in asked.seeds for way in WAYS):
        with tempfile.TemporaryDirectory(prefix="onward-summaries-") as folder:
            made = run(way, seed, asked.turns, asked.held_out, Path(folder))
        runs = [*(each for each in known() if (each["way"], each["seed"]) != (way, seed)), made]
        RUNS.write_text(json.dumps(sorted(runs, key=lambda each: (each["seed"], each["way"])), indent=1) + "\n")
        print(json.dumps(made), flush=True)
    report_beside(list(rows(known())))


if __name__ == "__main__":
    main()
