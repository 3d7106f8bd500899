"""Many swaps, half of them by delta, while clients stream with tools: no client notices, and all records are right.

`make soak` runs it with sixty swaps, the tests with fewer."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import psutil
import pytest
from publisher import Publisher
from rescoring import all_turns, worst_difference_of
from service_tree import Service, user, wait_for
from sglang_service import sglang_service

from onward.wiring.foundation import open_foundation

SWAPS = int(os.environ.get("SWAPS", "8"))
CLIENTS = 16
TOLERANCE = 1e-4
SWAP_TIMEOUT_S = 300
GROWTH = 1.15  # of memory, from half of the way to the end
ENDINGS = ("stop", "length", "tool_calls")
TOOL = {"type": "function", "function": {"name": "run_tests", "parameters": {"type": "object", "properties": {}}}}
SETTINGS = {
    "serving.versions.anchor_every": 2,  # every second version whole
    "serving.versions.keep": 1000,
    "serving.versions.min_swap_interval_s": 0.05,
    "release.canary.enabled": "off",
}


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with sglang_service(tmp_path_factory.mktemp("soak"), SETTINGS) as made:
        yield made


class Clients:
    """Clients that each ask again as soon as they are answered."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = asyncio.Event()
        self.answers: dict[str, tuple[str, int]] = {}  # by inference: how it ended, and tokens
        self.failures: list[str] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession(self._url) as http, asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._one(http, number))

    def stop(self) -> None:
        self._over.set()

    async def _one(self, http: aiohttp.ClientSession, number: int) -> None:
        question = user(f"[web] write total{number}(xs): sum of xs")
        body = {"model": "onward-tiny", "messages": [question], "tools": [TOOL], "stream": True, "max_tokens": 80}
        body["stream_options"] = {"include_usage": True}
        while not self._over.is_set():
            async with http.post("/v1/chat/completions", json=body) as response:
                events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
            self._note(response.status, events)

    def _note(self, status: int, events: list[dict[str, Any]]) -> None:
        errors = [event["error"] for event in events if "error" in event]
        ended = [c["finish_reason"] for e in events for c in e.get("choices", ()) if c.get("finish_reason")]
        if status != 200 or errors or len(ended) != 1 or ended[0] not in ENDINGS:
            self.failures.append(f"{status} {errors} {ended}")
            return
        inference_id = next(event["onward"]["inference_id"] for event in events if "onward" in event)
        self.answers[inference_id] = ended[0], events[-1]["usage"]["completion_tokens"]


def memory_bytes(service: Service) -> int:
    """Return the memory of the whole tree; pages that processes share count once."""
    processes = [psutil.Process(service.pid), *psutil.Process(service.pid).children(recursive=True)]
    return sum(map(_pss_bytes, processes))


def _pss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:  # it ends just now
        return 0


def swap(service: Service, publisher: Publisher) -> None:
    version = publisher.publish(scale=2e-3, share=0.02)
    wait_for(lambda: service.get("/v1/fleet")["data"][0]["serving"] == version, SWAP_TIMEOUT_S, f"version {version}")


@pytest.mark.timeout(3000)
def test_nobody_notices_swaps(service: Service) -> None:
    clients, sizes = Clients(service.url), []

    async def soak(publisher: Publisher) -> None:
        streaming = asyncio.create_task(clients.run())
        for _ in range(SWAPS):
            await asyncio.to_thread(swap, service, publisher)
            sizes.append(memory_bytes(service))
        clients.stop()
        await streaming

    with Publisher(service.directory, {"ONWARD_SERVING__VERSIONS__ANCHOR_EVERY": "2"}) as publisher:
        asyncio.run(soak(publisher))
    assert clients.failures == []
    assert sizes[-1] < GROWTH * sizes[SWAPS // 2], sizes
    check_records(service, clients)


def check_records(service: Service, clients: Clients) -> None:
    foundation = open_foundation(service.directory)
    try:
        wait_for(lambda: len(all_turns(foundation)) >= len(clients.answers), what="all turns in the store")
        turns = {turn.inference_id: turn for turn in all_turns(foundation)}
        assert turns.keys() == clients.answers.keys()
        for inference_id, (finish_reason, tokens) in clients.answers.items():
            turn = turns[inference_id]
            assert (turn.finish_reason, len(turn.token_ids)) == (finish_reason, tokens)
            assert turn.trainable, turn.untrainable_reasons
            assert sum(span.end - span.start for span in turn.policy_versions) == tokens == len(turn.logprobs)
        spoke = {span.version for turn in turns.values() for span in turn.policy_versions}
        assert len(spoke) > SWAPS / 2
        assert sum(len(turn.policy_versions) > 1 for turn in turns.values()) > 0, "no answer met a swap"
        assert worst_difference_of(foundation, list(turns.values())) < TOLERANCE
        upon = dict(re.findall(r"weights/0*(\d+)/delta-0*(\d+)", " ".join(foundation.blobs.list("weights/"))))
        assert len(upon) > SWAPS / 4
        assert not upon.keys() & set(upon.values()), "with `anchor_every` 2 a delta stands upon a whole version"
    finally:
        foundation.close()
