"""`onward evals check`: what of a service's past, of corpora and of tasks for agents tells the cases of suites."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from core.codec import plain
from core.errors import ConfigError
from core.events import Completion, Topic
from core.ports import Blobs
from environments.errors import EnvironmentFault
from environments.tasks.adapters.verifiers_settings import environment_tasks, stands_for_environment, wanted_of
from environments.tasks.harbor.folder import HarborTask, read_tasks
from environments.tasks.sources import questions_in, stands_for_questions
from environments.tasks.task import Task
from learner.midtraining.corpus import texts_of
from learner.midtraining.corpus_files import files_of, read_documents
from learner.sequences.resemblance import CaseName, answers_of
from learner.versions import manifest
from onward.replays.history import open_history, period, require_directory, watched
from onward.replays.provenance import VersionRange, provenance_of
from onward.wiring.foundation import Foundation, open_foundation
from onward.wiring.suites.kept_out import ToldCases, load_suites, said_by
from serving.evals.cases import Suite

_SHOWN = 5  # places of a case, in a table for people


@dataclass(frozen=True)
class CasePlace:
    """Something that tells a case: a turn by its id, a document by file and line, a task by its folder.

    `by`: what of the case it resembles. `learned_by`: the first version that trained on a turn; None: none did."""

    suite: str
    case: str
    by: str
    kind: str
    where: str
    learned_by: Any = None


@dataclass
class Contamination:
    """What was found, and how much was looked at.

    `never_learned`: turns that nothing may learn from, `tokens_alone`: documents without words, and folders of the
    directory's own tasks that cannot be loaded here. These were not looked at. `origin`: where the turns come from, if
    any were to be looked at."""

    suites: Mapping[str, Suite]
    places: list[CasePlace] = field(default_factory=list)
    looked_at: Counter[str] = field(default_factory=Counter)
    not_looked_at: Counter[str] = field(default_factory=Counter)
    origin: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        suites = [
            {"suite": name, "digest": suite.digest, "cases": len(suite.cases), "solutions": len(suite.solutions())}
            for name, suite in self.suites.items()
        ]
        return {
            "suites": suites,
            "looked_at": dict(self.looked_at),
            "not_looked_at": dict(self.not_looked_at),
            "found": [asdict(place) for place in self.places],
        }


@dataclass(frozen=True)
class Sources:
    """What is compared with the suites. The tasks of the directory's own rollouts are, too.

    `kept`: the folder of the interpreters in which environments of `verifiers` are loaded."""

    directory: Path | None
    corpora: Sequence[Path] = ()
    tasks: Sequence[Path] = ()
    kept: Path = Path("build/environments")
    begin: str | None = None
    end: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)


def check_suites(suites: Sequence[Path], sources: Sources) -> Contamination:
    """Compare the cases of suites with the sources. Raises ConfigError naming what cannot be read."""
    if sources.directory is None and not (sources.corpora or sources.tasks):
        raise ConfigError("--sessions DIR, --corpus PATH or --tasks FOLDER: say what the suites are compared with")
    if sources.directory is None and (sources.begin or sources.end or sources.overrides):
        raise ConfigError("--from, --to and --set are of --sessions DIR, which is not given")
    found = Contamination(load_suites(suites))
    cases, own = ToldCases(found.suites), list[Path]()
    if sources.directory is not None:
        own = _look_at_turns(sources.directory, sources, cases, found)
    for corpus in sources.corpora:
        _look_at_documents(corpus, cases, found)
    for folder in sources.tasks:
        try:
            _look_at_tasks(folder, sources.kept, cases, found)
        except EnvironmentFault as error:
            raise ConfigError(f"--tasks: {error}") from error
    for folder in own:
        try:
            _look_at_tasks(folder, sources.kept, cases, found)
        except EnvironmentFault as error:
            found.not_looked_at[f"folder of the rollouts' tasks, {folder}: {error}"] += 1
    return found


def show(found: Contamination, console: Console) -> None:
    """Print the cases that are told, with the first places of each."""
    looked = ", ".join(f"{count} {kind}s" for kind, count in found.looked_at.items() if count)
    console.print(f"looked at: {looked or 'nothing'}", highlight=False)
    for why, count in found.not_looked_at.items():
        console.print(f"not looked at: {count} {why}", highlight=False)
    by_case: dict[CaseName, list[CasePlace]] = {}
    for place in found.places:
        by_case.setdefault((place.suite, place.case), []).append(place)
    if not by_case:
        console.print("nothing tells a case", highlight=False)
        return
    table = Table("suite", "case", "told by", "places")
    for (suite, case), places in by_case.items():
        counts = Counter(f"{place.kind} ({place.by})" for place in places)
        more = [f"and {len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
        shown = "\n".join([*map(_in_words, places[:_SHOWN]), *more])
        table.add_row(Text(suite), Text(case), "\n".join(f"{n} {kind}" for kind, n in counts.items()), Text(shown))
    console.print(table)


def _in_words(place: CasePlace) -> str:
    return place.where if place.learned_by is None else f"{place.where}, learned by version {place.learned_by}"


# ------------------------------------------------------------------------------------------------ turns


def _look_at_turns(directory: Path, sources: Sources, cases: ToldCases, found: Contamination) -> list[Path]:
    """Look at the directory's turns, and return the folders of its own tasks."""
    require_directory(directory, sources.overrides)
    places: list[CasePlace] = []
    with (
        closing(open_foundation(directory, sources.overrides)) as source,
        Progress(console=Console(stderr=True)) as progress,
    ):
        history = open_history(source, Topic.TURNS, *period(sources.begin, sources.end))
        versions = VersionRange()
        for records in versions.seen(watched(history, progress, "turns")):
            for turn in (record.event for record in records if isinstance(record.event, Completion)):
                if turn.unstored is not None or not turn.learn:
                    found.not_looked_at["turns that nothing may learn from"] += 1
                    continue
                found.looked_at["turn"] += 1
                places += _places(cases.told_by(asks_of(turn.messages), answers_of(turn)), "turn", turn.inference_id)
        found.places += _with_versions(places, source.blobs)
        found.origin = provenance_of(source, versions)
        return _own_tasks(source)


def asks_of(messages: Iterable[Any]) -> list[str]:
    """Return what the user said last, or the prompt of a raw completion; and, as a case asks it, all of what was said.

    What has not the form of a message is left to whoever learns from it."""
    said = [_words_of(each) for each in messages if isinstance(each, dict) and each.get("role") in ("user", "prompt")]
    return list(dict.fromkeys([*said[-1:], "\n".join(said)]))


def _words_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _with_versions(places: Sequence[CasePlace], blobs: Blobs) -> Iterator[CasePlace]:
    """Yield the places with the first version that trained on each turn, as the manifests have it."""
    wanted = {place.where for place in places}
    learned: dict[str, Any] = {}
    for path in sorted(blobs.list("manifests/")) if wanted else ():
        made = manifest.decode(blobs.get(path))
        for record in made.turns:
            if record.dropped is None and record.inference_id in wanted:
                learned.setdefault(record.inference_id, plain(made.version))
    for place in places:
        yield replace(place, learned_by=learned.get(place.where))


def _own_tasks(source: Foundation) -> list[Path]:
    return [folder for each in source.settings.rollouts.task_sets.values() for folder in each.folders]


# ------------------------------------------------------------------------------------------------ documents and tasks


def _look_at_documents(corpus: Path, cases: ToldCases, found: Contamination) -> None:
    for document in read_documents(files_of(corpus)):
        if not {"text", "messages"} & document.document.keys():
            found.not_looked_at["documents of tokens alone"] += 1
            continue
        found.looked_at["document"] += 1
        told = cases.told_by(_asks_in(document.document), texts_of(None, document.document))
        found.places += _places(told, "document", document.where)


def _asks_in(document: Mapping[str, Any]) -> list[str]:
    """Return what a document asks: what the user says in a conversation, or all of a text."""
    return [document["text"]] if "text" in document else asks_of(document["messages"])


def _look_at_tasks(folder: Path, kept: Path, cases: ToldCases, found: Contamination) -> None:
    """Look at the tasks of a folder, of whichever library. Raises EnvironmentFault where they cannot be loaded."""
    for task in _tasks_in(folder, kept):
        found.looked_at["task"] += 1
        where = task.name if task.folder is None else str(task.folder)
        found.places += _places(cases.told_by(*said_by(task)), "task", where)


def _tasks_in(folder: Path, kept: Path) -> Sequence[Task | HarborTask]:
    if stands_for_environment(folder):
        return asyncio.run(environment_tasks(wanted_of(folder), kept))
    return questions_in(folder) if stands_for_questions(folder) else read_tasks([folder])


def _places(told: Mapping[CaseName, str], kind: str, where: str) -> list[CasePlace]:
    return [CasePlace(suite, case, by, kind, where) for (suite, case), by in told.items()]
