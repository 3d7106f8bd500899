"""Each stage as a process of its own on one directory behaves like the one service."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from service_tree import Refused, wait_for
from stage_processes import ApiProcess, StageProcess

SETTINGS = {"learner.enabled": "false", "release.controller": "false"}
ASK = "[web] write total(xs): sum of xs"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes") / "service"


@pytest.fixture(scope="module")
def stages(directory: Path) -> Iterator[dict[str, StageProcess]]:
    """Start the API with the engine in it, and all other stages."""
    with ExitStack() as stack:
        api = stack.enter_context(ApiProcess(directory, "api-1", SETTINGS)).wait_ready()
        others = {
            name: stack.enter_context(StageProcess(name, directory, name, SETTINGS))
            for name in ("ingest", "score", "release")
        }
        for stage in others.values():
            stage.wait_ready()
        yield {"api": api, **others}


def ask_and_accept(api: ApiProcess) -> str:
    inference_id = str(api.chat(ASK, max_tokens=8)["onward"]["inference_id"])
    api.post("/v1/feedback", {"inference_id": inference_id, "metric_name": "accepted", "value": True})
    return inference_id


def rewards_of(api: ApiProcess, inference_id: str) -> list[dict[str, Any]]:
    return [each for each in api.get("/v1/rewards?limit=100")["data"] if each["inference_id"] == inference_id]


def test_what_users_do_becomes_rewards_through_four_processes(stages: dict[str, StageProcess]) -> None:
    api = stages["api"]
    assert isinstance(api, ApiProcess)
    inference_id = ask_and_accept(api)
    (reward,) = wait_for(lambda: rewards_of(api, inference_id), what="the reward")
    assert reward["value"] == 1.0
    assert api.readiness["log"] == "ok"


@pytest.mark.parametrize("name", ["ingest", "score"])
def test_a_stage_that_is_killed_misses_nothing_and_repeats_nothing(stages: dict[str, StageProcess], name: str) -> None:
    api, stage = stages["api"], stages[name]
    assert isinstance(api, ApiProcess)
    before = [ask_and_accept(api) for _ in range(3)]
    stage.kill()
    while_away = [ask_and_accept(api) for _ in range(3)]
    stage.restart().wait_ready()
    for inference_id in before + while_away:
        rewards = wait_for(lambda i=inference_id: rewards_of(api, i), what="the reward")
        assert [reward["revision"] for reward in rewards] == [0]


def test_a_killed_api_leaves_its_turns_to_the_next(stages: dict[str, StageProcess]) -> None:
    api = stages["api"]
    assert isinstance(api, ApiProcess)
    inference_id = ask_and_accept(api)
    api.kill()
    api.restart().wait_ready()
    wait_for(lambda: rewards_of(api, inference_id), what="the reward")


def test_a_stage_tells_of_itself(directory: Path, stages: dict[str, StageProcess]) -> None:
    port = free_port()
    with StageProcess("release", directory, "release-2", {**SETTINGS, "metrics.port": port}) as standby:
        standby.wait_ready()
        assert b"onward_" in read(port, "/metrics")
        assert json.loads(read(port, "/healthz")) == {"status": "ok"}
        assert json.loads(read(port, "/readyz"))["components"] == {"release": "ok"}
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            read(port, "/elsewhere")
        refused.value.close()
        assert standby.stop() == 0
    second = StageProcess(
        "release", directory, "release-3", {**SETTINGS, "metrics.port": 1, "metrics.host": "192.0.2.1"}
    )
    assert second.process.wait(120) == 2
    assert "metrics.port" in second.log_text()


def read(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return bytes(response.read())


def test_commands_find_the_api(directory: Path, stages: dict[str, StageProcess]) -> None:
    command = [sys.executable, "-m", "onward", "policies", str(directory)]
    assert "live" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_unknown_thing_is_refused_as_in_one_process(stages: dict[str, StageProcess]) -> None:
    api = stages["api"]
    assert isinstance(api, ApiProcess)
    with pytest.raises(Refused, match="404"):
        api.post("/v1/feedback", {"inference_id": "no-such", "metric_name": "accepted", "value": True})
