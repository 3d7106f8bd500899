"""The service over two real SGLang servers: used by a client, and exposed to faults of servers and hosts."""

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from openai import OpenAI
from processes import words_of
from publisher import Publisher
from rescoring import all_turns
from service_tree import Service, user, wait_for
from sglang_service import sglang_service

from core.events import Completion
from onward.wiring.foundation import Foundation, open_foundation

pytestmark = pytest.mark.timeout(900)  # servers start within, on whatever machine
SETTINGS = {
    "serving.sglang.replicas": 2,
    "serving.sglang.timeouts.admin_s": 20.0,
    "serving.fleet.engine_wait_s": 30.0,
    "serving.sglang.timeouts.health_every_s": 1.0,
    "serving.sglang.timeouts.health_s": 3.0,
    "serving.versions.min_swap_interval_s": 0.05,
    "release.canary.enabled": "off",
}
ADMIN_KEY = "planted-key-of-engines"
ASK = "[web] write total(xs): sum of xs"
ON_AND_ON = {"max_tokens": 400, "logit_bias": {"0": -100, "2": -100}}
TOOL = {"type": "function", "function": {"name": "run_tests", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with sglang_service(tmp_path_factory.mktemp("fleet"), SETTINGS, ADMIN_KEY) as made:
        yield made


@pytest.fixture(scope="module")
def publisher(service: Service) -> Iterator[Publisher]:
    with Publisher(service.directory) as made:
        yield made


@pytest.fixture(autouse=True)
def ready(service: Service) -> None:
    """Wait until the whole fleet is ready, whatever an earlier test did to it."""
    wait_for(lambda: all(replica["state"] == "ready" for replica in fleet(service)), 240, "a whole fleet")


def fleet(service: Service) -> list[dict[str, Any]]:
    return list(service.get("/v1/fleet")["data"])


def all_serve(service: Service, version: int) -> bool:
    live = service.get("/v1/policies")["live"]
    return bool(live == version and [r["serving"] for r in fleet(service)] == [version, version])


def host_process(service: Service, name: str) -> psutil.Process:
    children = psutil.Process(service.pid).children()
    return next(child for child in children if {name, "serve"} <= set(words_of(child)))


def engine_process(service: Service, name: str) -> psutil.Process:
    return host_process(service, name).children()[0]


def running(replica: dict[str, Any]) -> int:
    with urllib.request.urlopen(f"{replica['url']}/v1/loads?include=core", timeout=60) as answer:
        return sum(load["num_running_reqs"] for load in json.load(answer)["loads"])


@asynccontextmanager
async def streaming(service: Service, session: str = "", **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {"model": "onward-tiny", "messages": [user(ASK)], "stream": True, **fields}
    headers = {"x-session-id": session} if session else {}
    url = service.url + "/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        yield response


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def test_the_official_client_streams_with_tools_and_goes_on_in_one_session(service: Service) -> None:
    with OpenAI(base_url=service.url + "/v1", api_key="none") as client:
        messages: list[Any] = [user(ASK)]
        stream = client.chat.completions.create(
            model="onward-tiny", messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )  # type: ignore[call-overload]
        chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0
    first = next(told["onward"] for chunk in chunks if "onward" in (told := chunk.model_dump()))
    messages += [{"role": "assistant", "content": said}, user("again")]
    again = service.post(
        "/v1/chat/completions",
        {"model": "onward-tiny", "messages": messages, "tools": [TOOL]},
        x_session_id=first["session_id"],
    )
    assert again["onward"]["parent_id"] == first["inference_id"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # the same server had the prefix
    turns = logged(service, {first["inference_id"], again["onward"]["inference_id"]})
    assert len({turn.replica for turn in turns}) == 1
    assert turns[0].replica in ("engine-1", "engine-2")


def test_the_engines_key_is_asked_for_and_shown_to_nobody(service: Service) -> None:
    """The key is in no argument, in no log, and in no answer of an engine."""
    tree = psutil.Process(service.pid).children(recursive=True)
    assert not any(ADMIN_KEY in " ".join(words_of(process)) for process in tree)
    logs = list((service.directory / "hosts").rglob("sglang.log"))
    assert len(logs) == 2
    assert all("'admin_api_key': '***'" in log.read_text() and ADMIN_KEY not in log.read_text() for log in logs)
    url = fleet(service)[0]["url"]
    with urllib.request.urlopen(f"{url}/server_info", timeout=60) as answer:
        assert ADMIN_KEY not in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(urllib.request.Request(f"{url}/pause_generation", b"{}", method="POST"), timeout=60)
    refused.value.close()


def test_an_engine_imports_sglang_once(service: Service) -> None:
    """Both processes beside the server are forked from it: interpreters of their own would take three times as long."""
    server = engine_process(service, "engine-1")
    assert len(server.children(recursive=True)) == 2  # new interpreters have a third one beside them, which tracks them


def logged(service: Service, inference_ids: set[str]) -> list[Completion]:
    foundation = open_foundation(service.directory)
    try:
        return list(wait_for(lambda: _found(foundation, inference_ids), what="the turns in the store"))
    finally:
        foundation.close()


def _found(foundation: Foundation, inference_ids: set[str]) -> list[Completion] | None:
    turns = [turn for turn in all_turns(foundation) if turn.inference_id in inference_ids]
    return turns if len(turns) == len(inference_ids) else None


def test_an_engine_that_is_killed_costs_the_streams_begun_and_nothing_else(service: Service) -> None:
    begun = service.chat(ASK, max_tokens=4)["onward"]
    replica = logged(service, {begun["inference_id"]})[0].replica
    assert replica is not None
    engine = engine_process(service, replica).pid  # of the session's next turn, too

    async def run() -> None:
        async with streaming(service, session=begun["session_id"], **ON_AND_ON) as response:
            events = events_of(response)
            await anext(events)
            os.killpg(engine, signal.SIGKILL)
            assert [event async for event in events][-1]["error"]["type"]
        async with streaming(service, session=begun["session_id"], max_tokens=8) as response:  # by the other, at once
            assert response.status == 200
            assert "error" not in [event async for event in events_of(response)][-1]

    asyncio.run(run())
    wait_for(lambda: is_another(service, replica, engine), 240, "the engine's return")


def is_another(service: Service, name: str, before: int) -> bool:
    """Return whether the host has a new engine that serves; the host's own status may be a moment old."""
    engines = host_process(service, name).children()
    status = next(status for status in fleet(service) if status["name"] == name)
    try:
        return bool(engines and engines[0].pid != before and running(status) >= 0 and status["state"] == "ready")
    except (OSError, HTTPException):  # it is being killed, or does not answer yet
        return False


def test_a_host_that_is_killed_catches_up_by_itself(service: Service, publisher: Publisher) -> None:
    before = host_process(service, "engine-2").pid
    host_process(service, "engine-2").kill()
    version = publisher.publish()
    assert service.chat(ASK, max_tokens=4)["onward"]["inference_id"]
    wait_for(lambda: all_serve(service, version), 300, "both engines on the new version")
    assert host_process(service, "engine-2").pid != before


def test_an_engine_that_hangs_is_left_and_started_again(service: Service) -> None:
    stopped = engine_process(service, "engine-1")
    os.killpg(stopped.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    answers = [service.chat(ASK, max_tokens=4)["onward"]["inference_id"] for _ in range(8)]
    assert len(set(answers)) == 8
    assert time.monotonic() - began_s < 60
    wait_for(lambda: not stopped.is_running(), 120, "the end of the hung engine")
    wait_for(lambda: all(replica["state"] == "ready" for replica in fleet(service)), 240, "the engine's return")


def test_a_client_that_hangs_up_aborts_its_request(service: Service) -> None:
    async def ask(*, to_the_end: bool) -> float:
        began_s = time.monotonic()
        async with streaming(service, **ON_AND_ON) as response:
            async for _ in events_of(response):
                if not to_the_end:
                    break
        return time.monotonic() - began_s

    whole_s = asyncio.run(ask(to_the_end=True))
    asyncio.run(ask(to_the_end=False))
    wait_for(lambda: not any(map(running, fleet(service))), whole_s / 2, "the abort")


def test_an_operator_takes_a_version_back(service: Service, publisher: Publisher) -> None:
    good = int(service.get("/v1/policies")["live"])
    bad = publisher.publish()
    wait_for(lambda: all_serve(service, bad), 120, "the release")
    service.post(f"/v1/policies/{good}/rollback", {"why": "users complain"})
    assert service.chat(ASK, max_tokens=4)["onward"]["policy_version"] == good  # who does not serve it yet is passed by
    wait_for(lambda: all_serve(service, good), 120, "the other engine")
    states = {entry["version"]: entry["state"] for entry in service.get("/v1/policies")["data"]}
    assert (states[good], states[bad]) == ("live", "rolled_back")


def test_what_is_damaged_is_refused_and_everybody_goes_on(service: Service, publisher: Publisher) -> None:
    live = int(service.get("/v1/policies")["live"])
    bad = publisher.publish_damaged()
    wait_for(
        lambda: {e["version"]: e["state"] for e in service.get("/v1/policies")["data"]}[bad] == "rejected",
        60,
        "the rejection",
    )
    assert all_serve(service, live)
    assert service.chat(ASK, max_tokens=4)["onward"]["policy_version"] == live


def test_the_command_line_shows_the_fleet(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    from onward.commands.client import show_fleet

    show_fleet(Path(service.directory), None)
    shown = capfd.readouterr().out
    assert "engine-1" in shown
    assert "engine-2" in shown
    assert "ready" in shown
