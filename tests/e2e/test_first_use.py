"""A developer's first minutes with the service."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import guests
import openai
import pytest
import shown_examples
from service_tree import Service, simulate, wait_for

from onward.wiring.foundation import open_foundation

ROOT = Path(__file__).resolve().parents[2]
STRICT = 'set -euo pipefail\ncurl() { command curl -sS --fail-with-body "$@"; echo; }\n'
SERVED_AT = re.compile(r"http://(localhost:8700|127\.0\.0\.1:8700|127\.0\.0\.1:8000|new:8000)")
"""Where the pages have a service."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"learner.batch.turns": 16, "learner.batch.min_turns": 8}
    service = Service(tmp_path_factory.mktemp("first") / "service", settings)
    service.directory.mkdir()
    try:
        yield service.start()
    finally:
        service.stop()


def test_what_pages_show_can_be_done_on_a_running_service(service: Service, tmp_path: Path) -> None:
    """One shell does it all, page by page, in a folder that looks like a clone of the repository."""
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name, started in (("onward", f"{sys.executable} -m onward"), ("python", sys.executable)):
        (binaries / name).write_text(f'#!/bin/sh\nexec {started} "$@"\n')
        (binaries / name).chmod(0o755)
    (tmp_path / "data").symlink_to(service.directory)
    (tmp_path / "SUITE").mkdir()
    cases = (ROOT / "docs" / "evals.md").read_text().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "SUITE" / "cases.toml").write_text(cases)
    script, before = [STRICT], accepted_of(service)
    for page in ("docs/clients.md", "README.md", "clients/python/README.md", "docs/evals.md"):
        for number, example in enumerate(shown_examples.of_test(shown_examples.SERVED, page)):
            text = SERVED_AT.sub(service.url, example.text).replace("--model onward ", "--model onward-tiny ")
            if example.language == "python":
                file = tmp_path / f"{page.replace('/', '-')}-{number}.py"
                file.write_text(text)
                text = f"python {file}\n"
            script.append(text.replace("--model onward\n", "--model onward-tiny\n"))
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), str(ROOT / "clients" / "python")])
    done = subprocess.run(
        ["bash", "-c", "".join(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode == 1, told  # of the last command alone: two cases are too few for a verdict
    assert "hold: not shown to be no worse" in told, told
    assert "could not run: " not in told, "the model's context has room for the answers"
    assert "accepted: true, by client" in told
    assert re.search(r"reward \+1\.000 .*accepted \+1", told)
    wait_for(lambda: accepted_of(service) >= before + 4, what="what each program says of its answer")


def accepted_of(service: Service) -> float:
    found = re.search(r'^onward_outcomes_total\{name="accepted"\} (\S+)$', service.text("/metrics"), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_chat_feedback_and_a_version_that_learned(service: Service, tmp_path: Path) -> None:
    """An unchanged OpenAI client chats and streams; feedback becomes rewards; new versions serve and are taken back."""
    for step in ("service: started the learner process", "service: loaded the model", "learner: is ready"):
        kept = (service.directory / "starts" / f"{step.partition(':')[0]}.log").read_text()
        assert len(re.findall(rf"^{step} \d+\.\d s$", kept, re.MULTILINE)) == 1, step
        assert step not in service.log_text(), "where nobody watches, a start is one line"
    (line,) = re.findall(r"^onward serves at .* after \d+\.\d s .*$", service.log_text(), re.MULTILINE)
    assert f"console: {service.url}/  documentation: {service.url}/docs/" in line
    client = service.client()

    answer = client.chat.completions.create(
        model="onward-tiny", messages=[{"role": "user", "content": "[web] write total(xs): sum of xs"}]
    )
    onward = answer.model_extra["onward"]  # type: ignore[index]
    assert onward["policy_version"] == 1
    assert onward["trainable"] is True

    def has_streamed() -> bool:
        """Whether an answer came in parts: a short one may not, nor one whose tokens a busy machine sends together."""
        stream = client.chat.completions.create(
            model="onward-tiny",
            messages=[{"role": "user", "content": "[web] write total(xs): sum of xs"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert chunks[-1].usage is not None
        return len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1

    wait_for(has_streamed, what="an answer in parts")

    said = service.post(
        "/v1/feedback", {"inference_id": onward["inference_id"], "metric_name": "accepted", "value": True}
    )

    def rewards() -> list[Any]:
        listed = service.get("/v1/rewards")["data"]
        return [reward for reward in listed if reward["inference_id"] == onward["inference_id"]]

    (reward,) = wait_for(rewards, what="the reward")
    assert reward["value"] == 1.0
    assert reward["outcome_ids"] == [said["feedback_id"]]
    wait_for(lambda: has_judged_before_the_end(service, client), what="feedback on an answer that still streams")

    users = simulate(service, tmp_path / "demo", seconds=900, rate=4, script=guests.__file__)
    try:
        wait_for(lambda: client_version(client) > 1, what="a newer version")
        take_back_the_third_version(service, client)
    finally:
        users.terminate()
        users.communicate(timeout=180)
    listed = subprocess.run(command("policies", str(service.directory)), capture_output=True, text=True, check=True)
    assert "rolled_back" in listed.stdout
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["failed_requests"], report["lost_turns"], report["lost_outcomes"]) == (0, 0, 0)
    assert report["turns"] > 16
    assert report["versions"] > 3
    assert "onward_feedback_to_served_seconds_count" in service.text("/metrics")


def test_a_start_after_a_kill_imports_nothing_that_it_does_not_need(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was compared with transformers at the first start: importing these modules would take seconds."""
    service.kill()
    first = len(service.log_text())
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    service.start(learner__enabled=False)  # its process would import them, and say so in the same log
    imported = set(re.findall(r"^import time: .*\| +(\S+)$", service.log_text()[first:], re.MULTILINE))
    assert {"torch", "serving.engines.local.engine", "api.app"} <= imported
    learning = {"transformers", "accelerate", "peft", "torch._dynamo", "torch._inductor", "torch.distributed.tensor"}
    optional = {"sympy", "triton", "scipy", "sklearn", "pandas", "matplotlib"}
    elsewhere = {"pyarrow", "kafka", "psycopg", "redis"}
    assert imported & (learning | optional | elsewhere) == set()
    assert service.chat("hello", max_tokens=4)["usage"]["completion_tokens"] > 0


def has_judged_before_the_end(service: Service, client: openai.OpenAI) -> bool:
    """Whether feedback on the first chunk came while the answer was being made; once it is rewarded in any case."""
    chunks = client.completions.create(model="onward-tiny", prompt="def f", max_tokens=400, stream=True)
    named = next(chunks).id
    said = service.post("/v1/feedback", {"inference_id": named, "metric_name": "accepted", "value": True})
    list(chunks)
    path = f"/v1/turns/{named.removeprefix('cmpl-')}"
    turn = wait_for(lambda: (found := service.get(path))["rewards"] and found, what="the reward")
    (reward,), (outcome,) = turn["rewards"], turn["outcomes"]
    assert reward["outcome_ids"] == [outcome["outcome_id"]] == [said["feedback_id"]]
    took = datetime.fromisoformat(outcome["received_at"]) - datetime.fromisoformat(turn["received_at"])
    return took.total_seconds() * 1000 < turn["latency_ms"]


def client_version(client: openai.OpenAI) -> int:
    answer = client.chat.completions.create(
        model="onward-tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=4
    )
    return int(answer.model_extra["onward"]["policy_version"])  # type: ignore[index]


def take_back_the_third_version(service: Service, client: openai.OpenAI) -> None:
    """Roll back from the command line: the earlier version serves, and the learner's next one is its child."""
    wait_for(lambda: client_version(client) > 2, what="a third version")
    newest = newest_version(service)  # before the rollback: its child may be made before the next look
    done = subprocess.run(
        command("rollback", "1", str(service.directory)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed = {policy["version"]: policy for policy in service.get("/v1/policies")["data"]}
    assert [policy for policy in listed.values() if policy["state"] == "rolled_back"]
    child = wait_for(
        lambda: next(
            (p for p in service.get("/v1/policies")["data"] if p["version"] > newest and p["parent"] == 1), None
        ),
        what="a child of the version rolled back to",
    )
    assert child["parent"] == 1


def newest_version(service: Service) -> int:
    return max(policy["version"] for policy in service.get("/v1/policies")["data"])


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "onward", *arguments]


def test_help_is_quick_and_complete() -> None:
    text = subprocess.run(command("--help"), capture_output=True, text=True, check=True).stdout
    assert {"run", "demo", "midtrain", "policies", "rollback", "replay"} <= set(text.split())


def test_blobs_may_lie_elsewhere_by_url(tmp_path: Path) -> None:
    overrides = {"ONWARD_BLOBS": f"file://{tmp_path}/elsewhere"}
    foundation = open_foundation(tmp_path / "service", overrides)
    foundation.blobs.put("weights/note", b"here")
    foundation.close()
    assert (tmp_path / "elsewhere" / "weights" / "note").read_bytes() == b"here"
