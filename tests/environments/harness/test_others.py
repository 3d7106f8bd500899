"""Harnesses of others in a sandbox without network: their turns are one session of the service, rightly told."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from api_harness import Service, serve
from sandboxed import require_bubblewrap
from scripted_policy import Script, says
from worked import calling, endpoint_of, in_sandbox, saying, task_of

from core.errors import EngineUnavailable
from environments.errors import InfrastructureFailure
from environments.harness.harness import Budget, Endpoint, HarnessRun, fit_out
from environments.harness.others.guest import Guest, Program
from environments.harness.others.known import mini_swe_agent, opencode
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Task

BUILD = (Path(__file__).resolve().parents[3] / "build" / "clients").resolve()  # as rollouts take what is installed
# A harness in a few lines: it asks twice, does what it is told, and streams the second answer.
PROGRAM = """\
import json, subprocess, sys, urllib.request
url, model, task = sys.argv[1:]
messages = [{"role": "user", "content": task}]
for stream in (False, True):
    body = {"model": model, "messages": messages, "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    url_of_chat, sent = url + "/v1/chat/completions", json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer unused"}
    request = urllib.request.Request(url_of_chat, sent, headers)
    said = urllib.request.urlopen(request).read()
    if not stream:
        text = json.loads(said)["choices"][0]["message"]["content"]
        ran = subprocess.run(text, shell=True, capture_output=True, text=True)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": ran.stdout or "nothing"}]
"""


def _command(url: str, model: str, task: Task) -> list[str]:
    return ["python3", "-c", PROGRAM, url, model, task.instruction]


@pytest.fixture(autouse=True)
def _sandboxes() -> None:
    """Skip before a guest has a folder of its own."""
    require_bubblewrap()


@pytest.fixture
def guest() -> Iterator[Guest]:
    guest = Guest(Program("two-steps", "0.1", _command, {}))
    yield guest
    guest.close()


def _worked(
    service: Service, repository: Path, guest: Guest, instruction: str, budget: Budget
) -> tuple[HarnessRun, bytes]:
    task = fit_out(task_of(repository, instruction), guest)

    async def use(sandbox: Sandbox) -> tuple[HarnessRun, bytes]:
        done = await guest.work(task, sandbox, endpoint_of(service), budget)
        return done, await sandbox.read("/workspace/notes.txt")

    found: tuple[HarnessRun, bytes] = in_sandbox(task.spec, use)
    return found


def test_its_turns_are_one_session_with_what_is_told_of_the_asker(
    service: Service, repository: Path, guest: Guest
) -> None:
    service.policy.scripts.extend([saying("echo changed > notes.txt; echo well"), saying("Done.")])
    done, notes = _worked(service, repository, guest, "Change the notes.", Budget())
    assert (done.ending, notes) == ("done", b"changed\n")
    first, second = (service.turn(inference_id) for inference_id in done.inference_ids)
    assert first.session_id == second.session_id == done.session_id
    assert second.parent_id == first.inference_id
    assert second.messages[-1]["content"] == "well\n"
    assert (first.harness_version, first.environment) == ("two-steps@0.1", "simulated")
    assert done.policy_versions == (1, 1)
    assert done.prompt_tokens == first.num_prompt_tokens + second.num_prompt_tokens
    assert done.output_tokens == first.num_output_tokens + second.num_output_tokens


def test_a_key_for_the_service_stays_outside(repository: Path, guest: Guest) -> None:
    keys = [{"key": "secret-key", "namespace": "default"}]
    task = fit_out(task_of(repository), guest)
    with serve(repository.parent / "service", keys=keys) as service:
        service.policy.context_length = 60_000
        service.policy.scripts.extend(
            [saying("env; cat /proc/*/environ | tr '\\0' ' '; ls /run/onward"), saying("Done.")]
        )

        async def use(sandbox: Sandbox) -> HarnessRun:
            return await guest.work(task, sandbox, replace(endpoint_of(service), api_key="secret-key"), Budget())

        done: HarnessRun = in_sandbox(task.spec, use)
        shown = service.policy.requests[-1].prompt_token_ids
    text = bytes(token for token in shown if token < 256)
    assert len(done.inference_ids) == 2
    assert b"TERM" in text
    assert b"secret-key" not in text


REACHES_FOR_MORE = """\
import http.client, json, sys
host = sys.argv[1].removeprefix("http://")
def ask(method, path, body, **headers):
    there = http.client.HTTPConnection(host)
    there.request(method, path, json.dumps(body), {"content-type": "application/json", **headers})
    answer = there.getresponse()
    return answer.status, answer.headers.get("x-onward-inference-id")
turn = {"model": sys.argv[2], "messages": [{"role": "user", "content": "go"}]}
first, made = ask("POST", "/v1/chat/completions", turn, **{"x-turn-type": "side", "x-onward-workload": "mine"})
told, feedback = [first], {"inference_id": made, "metric_name": "task_reward", "value": 1.0}
for path in ("/v1/feedback", "/v1/feedback/batch", "/v1/chat/completions/../../feedback", "/v1/sessions/s/end"):
    told.append(ask("POST", path, feedback)[0])
told += [ask("GET", path, None)[0] for path in ("/metrics", "/v1/sessions", "http://127.0.0.1:1/", "//127.0.0.1:1/")]
open("notes.txt", "w").write(json.dumps(told))
"""


def test_an_agent_reaches_nothing_but_turns_and_does_not_say_what_they_are(service: Service, repository: Path) -> None:
    service.policy.scripts.append(saying("Well."))
    program = Program(
        "reaching", "1", lambda url, model, task: ["python3", "-c", REACHES_FOR_MORE, url, model], folders={}
    )
    guest = Guest(program)
    done, told = _worked(service, repository, guest, "Work.", Budget())
    guest.close()
    first, *others = json.loads(told)
    assert first == 200
    assert others
    assert all(400 <= status < 500 for status in others)
    turn = service.turn(done.inference_ids[0])
    assert (turn.purpose, turn.workload) == ("turn", "agent")


@pytest.mark.parametrize(
    ("budget", "used_up"),
    [
        (Budget(calls=1), "calls"),
        pytest.param(Budget(tokens=10), "tokens", marks=pytest.mark.deep),
        pytest.param(Budget(critical_path_seconds=0.5), "seconds", marks=pytest.mark.deep),
    ],
)
def test_a_budget_ends_the_program(
    service: Service, repository: Path, guest: Guest, budget: Budget, used_up: str
) -> None:
    service.policy.scripts.extend([saying("sleep 3"), saying("Done.")])
    done, _ = _worked(service, repository, guest, "Wait.", budget)
    assert (done.ending, done.used_up) == ("budget", used_up)


def test_a_program_that_is_not_there_and_a_service_that_fails_are_no_work(
    service: Service, repository: Path, guest: Guest
) -> None:
    absent = Guest(Program("absent", "0", lambda url, model, task: ["/opt/absent"], {}))
    for who, part in ((absent, "sandbox"), (guest, "service")):
        service.policy.scripts.append(Script((72, 105), fails_at=0, error=EngineUnavailable("gone")))
        with pytest.raises(InfrastructureFailure) as failure:
            _worked(service, repository, who, "Work.", Budget())
        assert failure.value.part == part
    absent.close()


ASKS_ON = """\
import json, sys, time, urllib.error, urllib.request
url, model, seconds = sys.argv[1:]
open("notes.txt", "w").write("half")
ends, sent = time.monotonic() + float(seconds), {"model": model, "messages": [{"role": "user", "content": "go"}]}
headers = {"content-type": "application/json"}
while True:
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(sent).encode(), headers)
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError:
        pass
    if time.monotonic() > ends:
        break
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("goes_on_for", "budget"),
    [(0.5, Budget()), pytest.param(600, Budget(critical_path_seconds=10), marks=pytest.mark.deep)],
)
def test_work_whose_last_requests_went_unanswered_is_never_judged(
    service: Service, repository: Path, goes_on_for: float, budget: Budget
) -> None:
    """Neither where the program says that it is well, nor where its time is over meanwhile."""
    service.policy.scripts.append(saying("Well."))
    service.policy.default = Script((72, 105), fails_at=0, error=EngineUnavailable("gone"))
    command = ["python3", "-c", ASKS_ON]
    guest = Guest(Program("patient", "1", lambda url, model, task: [*command, url, model, str(goes_on_for)], {}))
    with (
        contextlib.closing(guest),
        pytest.raises(InfrastructureFailure, match="patient had no answer to its last") as failure,
    ):
        _worked(service, repository, guest, "Work.", budget)
    assert failure.value.part == "service"


@pytest.mark.deep  # the program's whole time
def test_a_service_that_falls_silent_is_no_work_either(
    repository: Path, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped: its connections are taken, and nothing ever comes."""
    monkeypatch.setattr("environments.harness.others.gateway._IS_WELL_WITHIN_SECONDS", 1.0)
    task = fit_out(task_of(repository), guest)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        endpoint = Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "any")

        async def use(sandbox: Sandbox) -> HarnessRun:
            # Its time is also that in which a busy machine starts it: it is to have asked before it is over.
            return await guest.work(task, sandbox, endpoint, Budget(critical_path_seconds=5))

        with pytest.raises(InfrastructureFailure, match="waited for an answer until its time was over") as failure:
            in_sandbox(task.spec, use)
    assert failure.value.part == "service"


def test_an_answer_that_takes_too_long_is_the_models(service: Service, repository: Path, guest: Guest) -> None:
    gate = threading.Event()
    service.policy.scripts.append(says("Well.", gate=gate))
    try:
        done, _ = _worked(service, repository, guest, "Wait.", Budget(critical_path_seconds=1))
    finally:
        gate.set()
    assert (done.ending, done.used_up) == ("budget", "seconds")


@pytest.mark.clients
def test_mini_swe_agent_works_in_the_sandbox(service: Service, repository: Path) -> None:
    service.policy.context_length = 60_000
    write = calling(("bash", {"command": "echo changed > notes.txt && cat calc/sums.py"}))
    submit = calling(("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}))
    service.policy.scripts.extend([write, submit])
    guest = Guest(mini_swe_agent(BUILD / "sdks-python"))
    done, notes = _worked(service, repository, guest, "Change the notes.", Budget())
    guest.close()
    assert (done.ending, notes, len(done.inference_ids)) == ("done", b"changed\n", 2)
    last = service.turn(done.inference_ids[-1])
    assert last.parent_id == done.inference_ids[0]
    assert "return one - other" in last.messages[-1]["content"]


@pytest.mark.clients
def test_opencode_works_in_the_sandbox(service: Service, repository: Path) -> None:
    service.policy.context_length = 60_000
    write = calling(("bash", {"command": "echo changed > notes.txt", "description": "Changes the notes"}))
    # Its request for a title comes beside the first turn, in an order of its own.
    service.policy.scripts.extend([write, write])
    service.policy.default = saying("Done.")
    guest = Guest(opencode(BUILD / "node" / "node_modules"))
    done, notes = _worked(service, repository, guest, "Change the notes.", Budget())
    guest.close()
    assert (done.ending, notes) == ("done", b"changed\n")
    turns = [service.turn(inference_id) for inference_id in done.inference_ids]
    assert {turn.session_id for turn in turns} == {done.session_id}
    assert {turn.harness_version for turn in turns} == {f"opencode@{guest.version}"}


def test_a_program_that_is_not_installed_is_said(tmp_path: Path) -> None:
    for known, name in ((mini_swe_agent, "mini-swe-agent"), (opencode, "opencode")):
        with pytest.raises(InfrastructureFailure, match=f"harness: {name} is not installed"):
            known(tmp_path)
