"""The report page: one file of HTML that needs nothing else."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.provenance import Origin, lowest_and_highest, provenance
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.reporting.figures import Attempt, TaskFigures, figures_of

_WHYS: Final = 50
_ATTEMPTS: Final = 5_000  # that are read in a fraction of a second, in which nothing else goes on
_templates = Environment(
    loader=PackageLoader("environments.rollouts.reporting", "."), autoescape=True, undefined=StrictUndefined
)


@dataclass(frozen=True)
class Page:
    """The file of a page, and who makes it: `made_by` of the provenance of reports."""

    file: Path
    made: Origin
    model: str | None = None

    def write(self, journal: RolloutJournal) -> None:
        """Write the page of the journal's latest attempts, whole or not at all."""
        attempts, waiting = journal.attempts_as(Attempt, _ATTEMPTS), len(journal.waiting())
        text = page_of(attempts, journal.answers(), waiting, "Rollouts", self.made, self.model)
        making = self.file.with_suffix(".part")
        making.write_text(text)
        making.replace(self.file)


def page_of(
    attempts: Iterable[Attempt], answers: Counter[str], waiting: int, title: str, made: Origin, model: str | None
) -> str:
    """Return the page of attempts, the newest first, of which none is kept but the latest without a judgement.

    `answers`: what the service made of the reports; `waiting`: episodes to be tried again."""
    unjudged: list[Attempt] = []
    versions = set[int | str]()
    tasks = figures_of(_noting(unjudged, versions, attempts))
    return _templates.get_template("page.html.j2").render(
        title=title,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        tasks=tasks,
        totals=_totals(tasks),
        answers=sorted(answers.items()),
        waiting=waiting,
        unjudged=unjudged,
        mean=_mean,
        counted=_counted,
        origin=provenance(made, model, None, lowest_and_highest(versions)),
    )


def _noting(unjudged: list[Attempt], versions: set[int | str], attempts: Iterable[Attempt]) -> Iterator[Attempt]:
    for each in attempts:
        versions.update(() if each.work is None else each.work.policy_versions)
        if each.reward is None and len(unjudged) < _WHYS:
            unjudged.append(each)
        yield each


def _totals(tasks: Sequence[TaskFigures]) -> dict[str, str]:
    rewards = [reward for task in tasks for reward in task.rewards]
    verdicts = sum((task.verdicts for task in tasks), Counter[str]())
    failures = sum((task.failures for task in tasks), Counter[str]())
    rate = "no attempt was judged" if not rewards else f"{fmean(reward >= 1 for reward in rewards):.0%}"
    return {
        "tasks": str(len(tasks)),
        "attempts": str(verdicts.total()),
        "judged": str(len(rewards)),
        "passed": rate,
        "out of time": str(verdicts["out_of_time"]),
        "infrastructure failures": f"{failures.total()}" + (f" ({_counted(failures)})" if failures else ""),
        "output tokens": f"{sum(sum(task.tokens) for task in tasks):,}",
    }


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{fmean(found):.1f}" if found else "-"


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "-"
