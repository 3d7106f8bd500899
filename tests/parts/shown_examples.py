"""The examples of the pages for users: each is run by a test, or it is said here why none runs it.

`tests/test_documents.py` holds this list to the pages, in both directions. A page for those who change the product
(`docs/howto`, decisions, the changelog) shows fragments of code, and is not among them."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("sh", "console", "python", "ts")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"(\$ |\.venv/bin/)?(onward|curl|make|docker|npm|python|python3) ")

GUIDE: Final = "tests/clients/test_plugin_guide.py::test_each_command_works_against_a_service"
OFFLINE: Final = "tests/onward/replays/test_exports.py::test_what_the_page_shows_can_be_done"
SERVED: Final = "tests/e2e/test_first_use.py::test_what_pages_show_can_be_done_on_a_running_service"
COMMANDS: Final = "tests/onward/commands/test_shown_commands.py::test_what_pages_show_can_be_done_in_a_directory"
DEEP: Final = "tests/onward/commands/test_shown_commands.py::test_what_pages_teach_can_be_learned"
WORKED: Final = (
    "tests/onward/replays/test_evals_command.py::test_a_task_is_worked_on_with_tools_and_a_copy_of_a_helper_loses"
)
AS_SHOWN: Final = "tests/clients/typescript/test_as_shown.py::test_the_commands_of_each_page_make_what_it_says"
BATCH: Final = "tests/api/feedback/test_batches.py::test_the_batch_of_the_page_is_taken"
SUITES: Final = "tests/onward/replays/test_suites.py::test_what_the_page_shows_can_be_done_with_ones_own_sessions"
AGENTS: Final = (
    "tests/onward/wiring/test_mined_tasks.py::test_a_state_that_no_task_has_is_unknown_until_a_person_names_it"
)
OWN_MODEL: Final = "tests/onward/profiles/test_init.py::test_what_the_page_shows_can_be_done_with_a_model"
SANDBOX: Final = "tests/environments/sandboxes/test_opened.py::test_the_lines_of_the_page_open_one"
CHECKED: Final = "tests/environments/tasks/test_document.py::test_the_commands_of_the_page_find_the_example_fair"
TASK: Final = "tests/environments/tasks/test_document.py::test_the_example_is_a_fair_task"

RUN: Final[Mapping[str, Mapping[str, str]]] = {
    "README.md": {"from openai import OpenAI": SERVED},
    "docs/clients.md": {
        "URL=http://localhost:8700": SERVED,
        "curl -w '\\n' $URL/v1/feedback": SERVED,
        "import httpx": SERVED,
        "curl $URL/v1/outcomes": SERVED,
        "curl -H 'content-type": BATCH,
    },
    "docs/evals.md": {
        "onward evals check SUITE": SUITES,
        "onward suite mine": SUITES,
        "onward suite accept": AGENTS,
        "onward evals run SUITE": SERVED,
        "onward evals run TASKS": WORKED,
        "onward replay DIR": DEEP,
        "onward ope DIR": DEEP,
    },
    "docs/offline.md": {
        "onward export data": OFFLINE,
        "from datasets import": OFFLINE,
        "onward init trial": OFFLINE,
        "onward replay data": OFFLINE,
        "onward propose candidate": OFFLINE,
        "onward ope data": OFFLINE,
    },
    "docs/operations.md": {"onward backup DIR": COMMANDS},
    "docs/plugins.md": {
        "URL=http://localhost:8700\nMODEL": GUIDE,
        "curl -D answer.headers": GUIDE,
        "curl $URL/v1/outcomes": GUIDE,
        "say() {": GUIDE,
        'say \'{"feedback_id": "f2"': GUIDE,
    },
    "docs/security.md": {"onward keys create": COMMANDS, "onward audit verify": COMMANDS},
    "docs/your-own-model.md": {"onward init": OWN_MODEL},
    "docs/environments/sandboxes.md": {"from environments.sandboxes": SANDBOX},
    "docs/environments/tasks.md": {
        "#!/bin/sh\nif": TASK,
        "#!/bin/sh\necho": TASK,
        "$ python -m environments.tasks check greet\n": CHECKED,
        "$ python -m environments.tasks check greet --base": CHECKED,
    },
    "clients/python/README.md": {
        "from onward_client import": SERVED,
        "pip install": "tests/clients/own_python/test_installed.py::test_it_is_installed_as_its_page_says",
    },
    "clients/typescript/README.md": {"cd clients/typescript": AS_SHOWN},
    "clients/vscode/README.md": {"cd clients/typescript": AS_SHOWN},
}
"""The test of each example, by page and by how the example begins."""

_ITS_MACHINES = "it wants more machines or GPUs than a test has"
_STACK = "it wants an engine of containers and the images: `make compose-test` brings the stack up by itself"
_BY_HAND = f"{_STACK}; tests/compose/test_living.py backs it up and restores it, the rest was tried by hand"
_MINUTES = "it takes minutes: a demo"
_FRAGMENT = "a fragment, whose names stand for what the reader has: tests/environments/harness does such work"
_TASKS = "it wants images or data sets from a registry"
NOT_RUN: Final[Mapping[str, Mapping[str, str]]] = {
    "README.md": {
        "make demo ": f"{_MINUTES}, and all tests",
        "make run": "it is the service that the other examples are run on",
        "while True:": "the loop in words; no program",
    },
    "docs/clients.md": {
        "make install": "it is how the service is installed and started that the other examples are run on",
    },
    "docs/environments.md": {
        "$ make rollouts": f"{_MINUTES}; tests/e2e/rollouts/test_made_by_make.py waits for it",
    },
    "docs/exploits.md": {".venv/bin/onward demo": _MINUTES, ".venv/bin/python -m simulator": _MINUTES},
    "docs/midtraining.md": {"onward midtrain": "its corpora are the reader's: tests/e2e/past runs it on others"},
    "docs/operations.md": {
        ".venv/bin/torchrun": _ITS_MACHINES,
        "docker compose up": _STACK,
        "SIMULATOR_KEY": _STACK,
        "onward exclude": "the user is nobody's: tests/onward/commands/test_exclude.py gives the same orders",
        "# the way back": "it takes a build of before, and was tried with one by hand",
        "onward policies": "version 417 is of nobody's log: tests/e2e/test_first_use.py rolls back by the same command",
    },
    "docs/stack.md": {
        "echo 'ONWARD_SETTINGS=": _BY_HAND,
        "docker compose run --rm --no-deps engine-arguments": _BY_HAND,
        "$ docker compose logs": _BY_HAND,
        "git describe --always": _BY_HAND,
        "docker image ls": _BY_HAND,
        "sudo install": _BY_HAND,
        "docker compose --profile": _BY_HAND,
        "docker compose stop": _BY_HAND,
        "docker compose create": _BY_HAND,
        "echo https": _BY_HAND,
    },
    "docs/your-own-model.md": {
        "CUDA_VISIBLE_DEVICES": _ITS_MACHINES,
        "docker compose": _STACK,
    },
    "docs/environments/fidelity.md": {"python -m environments.fidelity": "it wants a week of logged calls"},
    "docs/environments/harness.md": {"async with await": _FRAGMENT, "guest = Guest": _FRAGMENT},
    "docs/environments/tasks.md": {
        "python -I -m pytest": "it runs within a sandbox, with an agent's files",
        "$ python -m environments.tasks public": _TASKS,
        "environment = await": _TASKS,
    },
    "clients/typescript/README.md": {"import { DirectoryStorage": "it wants node: `npm test` there does the same"},
}
"""Why no test runs an example, by page and by how it begins."""


@dataclass(frozen=True)
class Example:
    page: str
    language: str
    text: str


def pages() -> list[Path]:
    folders = (ROOT / "docs", ROOT / "docs" / "environments", *sorted((ROOT / "clients").iterdir()))
    return [ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


@cache
def examples() -> tuple[Example, ...]:
    """Return all blocks that a reader could run, and those of no language that have commands."""
    found = (
        Example(str(page.relative_to(ROOT)), language, text)
        for page in pages()
        for language, text in _FENCED.findall(page.read_text())
    )
    return tuple(each for each in found if each.language in LANGUAGES or _is_hidden(each))


def _is_hidden(example: Example) -> bool:
    return not example.language and any(map(_COMMAND.match, example.text.splitlines()))


def of_test(test: str, page: str) -> list[Example]:
    """Return the examples of a page that this test is to run."""
    beginnings = tuple(beginning for beginning, by in RUN[page].items() if by == test)
    return [each for each in examples() if each.page == page and each.text.startswith(beginnings)]


def commands(examples: Sequence[Example], places: Mapping[str, object] = {}) -> Iterator[list[str]]:
    """Yield the commands of `sh` examples as words, with places of the test's for those that the page names."""
    for example in examples:
        for line in example.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            yield [str(places.get(word, word)) for word in words]
