"""An agent's work as a task in Harbor's format, whose files are made from its draft.

SUITE/tasks/NAME/instruction.md     what the user asked
                 task.toml          settings: the verifier has a sandbox of its own, without the version's tests
                 environment/       copied from the task whose image the session's turns name
                 solution/          each change as text, and a program that makes them
                 tests/             the commands that the agent ran
                 draft.toml         the draft itself"""

import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from core.errors import ConfigError
from serving.evals.agent_work import State
from serving.evals.cases import Draft, TaskCase, draft_in
from serving.evals.drafts.written import draft_text, value_text, write
from serving.evals.tasks import PARTIAL, digest_of

_TASKS: Final = "tasks"
_ENVIRONMENT: Final = "environment"
_DRAFT: Final = "draft.toml"
_VERIFIER_SECONDS: Final = 600.0
# Files of tests are not copied into the verifier's sandbox: a version that changes them must not judge itself.
_NOT_CARRIED: Final = (
    *("test", "tests", "test_*", "*_test.*", "*.test.*", "*.spec.*", "conftest.py", "__tests__"),
    *(".git", "__pycache__", "node_modules", ".venv"),
)
_SOLVE: Final = "#!/bin/sh\nexec python3 -I /solution/apply.py\n"
_APPLY: Final = '''\
"""Makes the changes of a session. Each is a file of parts; index.txt has their lengths."""

from pathlib import Path

HERE = Path(__file__).parent
for line in (HERE / "index.txt").read_text().splitlines():
    name, kind, *lengths = line.split()
    text, parts = (HERE / name).read_bytes().decode(), []
    for length in map(int, lengths):
        parts.append(text[:length])
        text = text[length + 1 :]
    path, new = Path(parts[0]), parts[-1]
    if kind != "write":
        before, old = path.read_bytes().decode(), parts[1]
        if not before.count(old) or (kind == "edit" and before.count(old) > 1):
            raise SystemExit(f"{name}: what it changes stands in {path} {before.count(old)} times")
        new = before.replace(old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(new.encode())
'''
# 126 and 127: the command could not be run, which is not the version's fault.
_TEST: Final = """\
#!/bin/sh
# The verdict is whether each command succeeds. A command that could not be run gives no verdict and no reward.
for each in /tests/[0-9]*.sh; do
  sh "$each" >/logs/verifier/output.txt 2>&1
  code=$?
  cat /logs/verifier/output.txt
  case $code in
    0) ;;
    126 | 127) exit 0 ;;
    *) echo 0 >/logs/verifier/reward.txt; exit 0 ;;
  esac
done
echo 1 >/logs/verifier/reward.txt
"""


def state_of(task: Path, workdir: str) -> State | None:
    """Return the state from which a session in this task's image began. Raises ConfigError.

    None if the work lies in /, where nobody can tell its files from the machine's."""
    if workdir.rstrip("/") in ("", "/"):
        return None
    return State(task=str(task.resolve()), digest=_digest(task), workdir=workdir.rstrip("/"))


def stands(state: State) -> bool:
    """Return whether the task still has the environment that the draft names. Raises ConfigError."""
    return Path(state.task, "task.toml").is_file() and _digest(Path(state.task)) == state.digest


def place_of(suite: Path, name: str) -> Path:
    return suite / _TASKS / name


def written_case(draft: Draft, **fields: Any) -> TaskCase:
    origin = {"source": draft.source, "reuse": draft.reuse}
    return TaskCase.model_validate({"name": draft.name, "task": f"{_TASKS}/{draft.name}"} | origin | fields)


def put_task(suite: Path, draft: Draft) -> Path:
    """Write a draft's task into a partial folder, which `place` puts into its place. Raises ConfigError."""
    assert draft.work is not None
    assert draft.work.state is not None
    source, folder = Path(draft.work.state.task), place_of(suite, f".{draft.name}{PARTIAL}")
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in _files(draft, _environment(source)):
        write(folder / path, text)
    try:
        shutil.copytree(source / _ENVIRONMENT, folder / _ENVIRONMENT, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise ConfigError(f"{source / _ENVIRONMENT}: cannot be copied ({error})") from error
    return folder


def place(suite: Path, name: str, folder: Path) -> None:
    """Put a task into its place. Raises ConfigError where something else lies there."""
    try:
        folder.rename(place_of(suite, name))
    except OSError as error:
        raise ConfigError(f"{place_of(suite, name)}: cannot be written ({error.strerror})") from error


def clear(suite: Path, name: str) -> None:
    """Remove the task of a draft that has no case: a process that accepted it ended before it wrote the case."""
    folder = place_of(suite, name)
    if (folder / _DRAFT).is_file() and draft_of(folder).name == name:
        remove(suite, name)


def remove(suite: Path, name: str) -> None:
    aside = place_of(suite, f".{name}{PARTIAL}")
    shutil.rmtree(aside, ignore_errors=True)
    place_of(suite, name).rename(aside)
    shutil.rmtree(aside)


def draft_of(folder: Path) -> Draft:
    """Return the draft from which a task was made. Raises ConfigError."""
    try:
        return draft_in(folder / _DRAFT, (folder / _DRAFT).read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder / _DRAFT}: cannot be read ({error.strerror})") from error


def _digest(task: Path) -> str:
    whole = blake3(digest_of(task / _ENVIRONMENT))
    whole.update(value_text(_environment(task)).encode())
    return whole.hexdigest()


def _environment(task: Path) -> Mapping[str, Any]:
    """Return the table `environment` of a task's settings. Raises ConfigError."""
    try:
        found = tomllib.loads((task / "task.toml").read_text(encoding="utf-8")).get("environment", {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{task / 'task.toml'}: cannot be read ({error})") from error
    return found if isinstance(found, dict) else {}


def _files(draft: Draft, environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the files that are made from a draft: the path in the task's folder, and the text."""
    work = draft.work
    assert work is not None
    assert work.state is not None
    yield _DRAFT, draft_text(draft)
    yield "instruction.md", draft.asked.rstrip("\n") + "\n"
    settings = {
        "schema_version": "1.4",
        "artifacts": [{"source": work.state.workdir, "exclude": list(_NOT_CARRIED)}],
        "task": {"name": f"mined/{draft.name}"},
        "verifier": {"environment_mode": "separate", "timeout_sec": _VERIFIER_SECONDS},
        "environment": dict(environment),
    }
    yield "task.toml", "".join(f"{name} = {value_text(value)}\n" for name, value in settings.items())
    yield "solution/solve.sh", _SOLVE
    yield "solution/apply.py", _APPLY
    index = []
    for number, change in enumerate(work.changes, 1):
        yield f"solution/{number:03}.txt", change.text
        index.append(f"{number:03}.txt {change.kind} {' '.join(str(len(part)) for part in change.parts)}\n")
    yield "solution/index.txt", "".join(index)
    yield "tests/test.sh", _TEST
    for number, command in enumerate(work.tests, 1):
        yield f"tests/{number:03}.sh", f"cd {shlex.quote(work.state.workdir)} || exit 126\n{command.command}\n"
