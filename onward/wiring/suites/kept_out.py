"""The suites that are kept out of training (`learner.admission.keep_out`), read from their directories."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from core.errors import ConfigError
from core.settings import LearnerSettings
from environments.tasks.adapters.reasoning import question_and_answer
from environments.tasks.harbor.folder import HarborTask
from environments.tasks.task import Task
from learner.sequences.resemblance import CaseName, KeptOut, Solutions, SuiteSolutions
from serving.evals.cases import Suite, read_suite

_Files = tuple[tuple[str, int, int], ...]
logger = logging.getLogger(__name__)


def load_suites(directories: Iterable[Path]) -> dict[str, Suite]:
    """Load suites by their directories, each once; one may have drafts alone. Raises ConfigError naming the file."""
    once: dict[Path, Path] = {}
    for directory in directories:
        once.setdefault(directory.resolve(), directory)
    return {str(directory): read_suite(directory) for directory in once.values()}


def kept_out_of(suites: Mapping[str, Suite]) -> KeptOut:
    """Return what of these suites must not be learned."""
    return KeptOut(SuiteSolutions(name, suite.digest, suite.kept_out()) for name, suite in suites.items())


def kept_out(settings: LearnerSettings) -> KeptOut:
    """Return what must not be learned, as the suites are now. Raises ConfigError."""
    return kept_out_of(load_suites(settings.admission.keep_out))


class WatchedSuites:
    """What must not be learned, for a learner that runs: read again whenever a file of a suite has changed.

    While a suite cannot be read any more, what was known before is kept out, the log says why, and it is tried again
    each time."""

    def __init__(self, settings: LearnerSettings) -> None:
        """Read the suites. Raises ConfigError."""
        self._directories = settings.admission.keep_out
        self._folders: tuple[Path, ...] = self._directories
        self._read(_files_of(self._folders))
        self._why = ""  # they cannot be read

    def __call__(self) -> KeptOut:
        files = _files_of(self._folders)
        if files != self._files or self._why:
            try:
                self._read(files)
            except (ConfigError, OSError) as error:  # the latter of a folder that vanishes amid the reading
                if str(error) != self._why:
                    logger.error("%s: until it can be read, what is kept out of training stays as it was", error)
                self._why = str(error)
            else:
                self._why = ""
                logger.info("suites have changed: %d solutions are kept out of training", len(self._known.solutions))
        return self._known

    def _read(self, files: _Files) -> None:
        """Read the suites, whose files were listed just before: what changes meanwhile is read the next time.

        Tasks may lie outside of them. Their folders are known once the suites are read, which is then done again."""
        while True:
            self._files = files
            suites = load_suites(self._directories)
            self._known = kept_out_of(suites)
            folders = (*self._directories, *_outside(self._directories, suites.values()))
            if folders == self._folders:
                return
            self._folders, files = folders, _files_of(folders)


def _outside(directories: Sequence[Path], suites: Iterable[Suite]) -> list[Path]:
    """Return the folders of tasks that are not below one of the directories."""
    inside = {directory.resolve() for directory in directories}
    return [folder for suite in suites for folder in suite.tasks.values() if inside.isdisjoint(folder.parents)]


def _files_of(folders: Iterable[Path]) -> _Files:
    """Return what shows a change: each file with its time and its size."""
    places = (place for folder in folders for place in os.walk(folder))
    return tuple(sorted(_seen(os.path.join(inside, name)) for inside, _, names in places for name in names))


def _seen(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except OSError:  # it has just been deleted, or may not be read: whoever loads it says so
        return path, 0, 0
    return path, found.st_mtime_ns, found.st_size


class ToldCases:
    """Finds the cases that texts tell: those of a turn, a document, or a task for agents."""

    def __init__(self, suites: Mapping[str, Suite]) -> None:
        self._solved = kept_out_of(suites)
        asked = {(name, case): text for name, suite in suites.items() for case, text in suite.asked().items()}
        self._asked = Solutions[CaseName](asked)

    def told_by(self, asks: Sequence[str], answers: Iterable[str]) -> dict[CaseName, str]:
        """Return the cases that this tells, each with what of it: `solution`, or `prompt` if it only asks the same.

        Each of `asks` is compared by itself."""
        prompts = dict.fromkeys((case for text in asks for case in self._asked.all_resembled_by(text)), "prompt")
        return prompts | {case: "solution" for text in answers for case in self._solved.cases_told_by(text)}


def said_by(task: Task | HarborTask) -> tuple[list[str], Iterable[str]]:
    """Return what a task asks, and the texts that solve it; of an environment of `verifiers` it has none."""
    if isinstance(task, Task) and task.answer is not None:
        question, answer = question_and_answer(task.answer)
        return [question], [answer]
    return [task.instruction], texts_below(task.solution)


def texts_below(folder: Path | None) -> Iterator[str]:
    """Yield the files of a task's folder `solution`; of none where it has no such folder."""
    for path in sorted(folder.rglob("*")) if folder is not None else ():
        if path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")
