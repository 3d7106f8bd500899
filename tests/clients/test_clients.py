"""Real clients, as their registries have them, each at a task with tools and streams, against a real service.

`make clients` installs them and runs this; at the end it prints a table (`conftest.py`). The model is the scripted one
of `script_model.py`; everything else is the product, started by `onward run`."""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recorder import Recording, recording
from script_model import make, own_texts
from service_tree import Service, wait_for
from tried_clients import BUILD, CLIENTS, HERE, MODEL, Client, Run

ROOT = Path(__file__).parents[2]
LEAST_TRAINABLE = 0.95
_TIMEOUT_S = 300
_ANSWER_ID = {"/v1/chat/completions": "chatcmpl-", "/v1/responses": "resp_", "/v1/messages": "msg_"}


@dataclass
class Row:
    """A client's line of the table."""

    client: str
    finished: bool = False
    turns: int = 0
    trainable: float = 0.0
    sessions_right: bool = False
    outcomes_joined: int = 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("clients")
    for script in (HERE / "node").glob("*.mjs"):
        whole = shutil.copy(script, BUILD / f"{script.name}.{os.getpid()}")
        os.replace(whole, BUILD / "node" / script.name)  # beside the packages that it imports, and perhaps in use
    make(directory / "model", own_texts(ROOT))
    settings = {
        "serving.model": directory / "model",
        "serving.model_name": MODEL,
        "serving.local.slots": 12,
        "learner.enabled": "false",
    }
    (directory / "service").mkdir()
    service = Service(directory / "service", settings)
    yield service.start()
    service.stop()


@pytest.fixture(scope="module")
def before_service(service: Service) -> Iterator[Recording]:
    with recording(service.url) as found:
        yield found


@pytest.mark.clients
@pytest.mark.timeout(900)  # some take long to start, on whatever machine
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name.replace(" ", "-"))
def test_client(
    client: Client,
    before_service: Recording,
    service: Service,
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    row = Row(client.name)
    record_property("row", vars(row))  # as it will be at the end
    before_service.start(tmp_path / "recorded.jsonl")
    run = Run(before_service.url, tmp_path / "project")
    said, status = _run(client, run)
    recorded = before_service.turns()
    turns = [line["answer"] for line in recorded if line["answer"]["purpose"] == client.purpose]
    file, text = client.leaves
    row.finished = not status and client.says in said and text in (run.directory / file).read_text()
    row.turns = len(turns)
    row.trainable = sum(turn["trainable"] for turn in turns) / max(1, len(turns))
    row.sessions_right = _sessions_right(turns, client) and len(recorded) - len(turns) == client.asides
    row.outcomes_joined = sum(_joined(service, line) for line in recorded)
    reasons = {reason for turn in turns for reason in turn["untrainable_reasons"]}
    assert row.finished, said[-3000:]
    assert row.turns == client.turns
    assert row.trainable >= LEAST_TRAINABLE, reasons
    assert row.sessions_right, json.dumps([line["answer"] for line in recorded], indent=1)
    assert row.outcomes_joined == len(recorded)


def _run(client: Client, run: Run) -> tuple[str, int]:
    """Run the client's commands in a fresh repository, as long as they succeed.

    Returns all that they print, and the last one's exit status."""
    run.directory.mkdir()
    home = run.directory / ".home"
    files = {"notes.txt": "codeword: onyx\n", "greet.py": "\n", ".gitignore": ".home\n", **client.files(run)}
    for name, text in files.items():
        path = run.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = _environment(run, home)
    git = ["git", "-c", "user.name=user", "-c", "user.email=user@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run([*git, *arguments], cwd=run.directory, env=environment, check=True)
    said = ""
    steps = client.steps(run)
    for number, command in enumerate(steps):
        done = subprocess.run(
            command,
            cwd=run.directory,
            env=environment,
            input=client.lines if number == len(steps) - 1 else "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        said += done.stdout
        if done.returncode:
            break
    return said, done.returncode


def _environment(run: Run, home: Path) -> dict[str, str]:
    """Return the environment: a home of the client's own, nobody's keys, and no reports to anybody."""
    return {
        "PATH": f"{BUILD / 'node-python' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "LANG": "C.UTF-8",
        "ONWARD_URL": run.url,
        "ONWARD_MODEL": MODEL,
        "OPENAI_API_BASE": f"{run.url}/v1",
        "OPENAI_API_KEY": "unused",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "CONTINUE_TELEMETRY_ENABLED": "0",
        "DO_NOT_TRACK": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }


def _sessions_right(turns: list[dict[str, Any]], client: Client) -> bool:
    """Return whether the turns are in as many sessions as conversations, and each continues the one before it."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for turn in turns:
        sessions.setdefault(turn["session_id"], []).append(turn)
    chains = [
        [turn["parent_id"] for turn in session] == [None, *(turn["inference_id"] for turn in session[:-1])]
        for session in sessions.values()
    ]
    return len(sessions) == client.sessions and all(chains)


def _joined(service: Service, line: dict[str, Any]) -> bool:
    """Report an outcome by the answer's own id, as the client was given it, and see it at the very turn.

    Tabby's agent has reported its own."""
    inference_id = line["answer"]["inference_id"]
    if line["path"] not in _ANSWER_ID:
        return _has_outcome(service, inference_id, None)
    said = {"inference_id": _ANSWER_ID[line["path"]] + inference_id, "metric_name": "accepted", "value": True}
    request = urllib.request.Request(
        f"{service.url}/v1/feedback", json.dumps(said).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        feedback_id = json.load(answer)["feedback_id"]
    return _has_outcome(service, inference_id, feedback_id)


def _has_outcome(service: Service, inference_id: str, feedback_id: str | None) -> bool:
    """Wait for an outcome of the turn, or for any."""

    def has() -> bool:
        outcomes = service.get(f"/v1/turns/{inference_id}")["outcomes"]
        return any(feedback_id in (None, outcome["outcome_id"]) for outcome in outcomes)

    wait_for(has, what=f"the outcome of {inference_id}")
    return True
