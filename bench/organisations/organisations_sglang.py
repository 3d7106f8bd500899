"""Organisations on one SGLang server: tokens per second by how many share it, and what loading a version costs others.

    python -m bench organisations_sglang [--rounds 5] [--loads 20]

Servers of the shipped model on this machine's processors, side by side: one with an adapter for each organisation,
asked as routers ask it, and one that serves a single policy, merged, as without organisations. As many requests at once
for all; in turns, medians. Then one organisation's next version is loaded, as its host does but for the probe, while
others stream: the stall is the longest time that one of them waits for its next tokens, less the median of such waits;
without a load it is measured, too."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import numpy as np

from bench.engines.engine import MODEL, Rounds, per_second, prompts_of
from bench.engines.sglang_world import PYTHON, answers, require_sglang, wait_for
from bench.organisations.organisations import POLICIES, PROMPT_TOKENS, RANK, Publisher, Waits
from bench.table import Row, interleave, report
from core.ids import ANCHOR, PolicyRef, Version
from core.settings import LoraSettings, SglangSettings
from serving.engines.sglang.adapters.arguments import adapter_arguments
from serving.engines.sglang.adapters.files import AdapterFiles
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.process import EngineProcess

REQUESTS = 16
TOKENS = 32
TOGETHER = 8  # adapters in one pass, the setting's default
LISTENERS = 6
_TIMEOUT_S = 120.0
_QUIET_S = 0.5


class Shared:
    """A server with an adapter for each of so many organisations; `load` brings one's next version."""

    def __init__(self, url: str, directory: Path, policies: int) -> None:
        self.url, self._made = url, Publisher(directory, MODEL)
        self._files = AdapterFiles(directory / "adapters", self._made.weights.open(self._made.anchor), RANK)
        self._admin = Admin(url, None, _TIMEOUT_S)
        self._version = 1
        self.names = [self.load(place) for place in range(policies)]

    def load(self, place: int) -> str:
        """Load a new version of an organisation's policy, and return the name that requests give to it."""
        self._version += 1
        ref = self._made.adapter(PolicyRef(POLICIES[place], Version(self._version)))
        directory = self._files.put(ref, self._made.weights.open(ref)).directory
        assert directory is not None
        self._admin.load_adapter(str(ref.version), directory)
        return str(ref.version)

    def unload(self, name: str) -> None:
        self._admin.unload_adapter(name)


def body(prompt: Sequence[int], name: str | None, tokens: int) -> dict[str, object]:
    sampling = {"max_new_tokens": tokens, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": True}
    asked: dict[str, object] = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
    return asked if name is None else {**asked, "lora_path": name}


def measure(url: str, names: Sequence[str | None], rounds: Rounds) -> float:
    """Return the tokens per second of so many requests at once, for these versions in turn; None: the model itself."""
    prompts = prompts_of(REQUESTS, rounds.next(), PROMPT_TOKENS).tolist()

    async def one(http: aiohttp.ClientSession, place: int) -> int:
        asked = body(prompts[place], names[place % len(names)], TOKENS)
        async with http.post(f"{url}/generate", json=asked) as answer:
            return int((await answer.json())["meta_info"]["completion_tokens"])

    async def all_of_them() -> int:
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            return sum(await asyncio.gather(*(one(http, place) for place in range(REQUESTS))))

    return per_second(lambda: asyncio.run(all_of_them()))


async def arrivals(http: aiohttp.ClientSession, url: str, name: str, seed: int) -> AsyncIterator[float]:
    """Yield when tokens of one long answer come."""
    asked = body(prompts_of(1, seed, PROMPT_TOKENS)[0].tolist(), name, 300) | {"stream": True}
    async with http.post(f"{url}/generate", json=asked) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                yield time.perf_counter()


async def listen(url: str, name: str, seed: int, waits: Waits, over: asyncio.Event) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        while not over.is_set():
            seed, last_s = seed + 1000, None
            async for now_s in arrivals(http, url, name, seed):
                if last_s is not None:
                    waits.spans.append((last_s, now_s))
                last_s = now_s
                if over.is_set():
                    break


async def stalls(shared: Shared, loads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the others' stalls in milliseconds while a version is loaded, and for as long without."""
    over, waits = asyncio.Event(), Waits()
    others = [
        asyncio.create_task(listen(shared.url, name, place, waits, over))
        for place, name in enumerate(shared.names[1 : 1 + LISTENERS])
    ]
    await asyncio.sleep(2.0)
    during, without = [], []
    for _ in range(loads):
        began_s = time.perf_counter()
        name = await asyncio.to_thread(shared.load, 0)
        took_s = time.perf_counter() - began_s
        during.append((began_s, began_s + took_s))
        await asyncio.sleep(_QUIET_S)
        without.append((time.perf_counter(), time.perf_counter() + took_s))
        await asyncio.sleep(took_s + _QUIET_S)
        await asyncio.to_thread(shared.unload, name)
    over.set()
    await asyncio.gather(*others)
    return waits.stalls_ms(during), waits.stalls_ms(without)


@contextmanager
def servers(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the URLs of a server that takes adapters, and of one that does not."""
    settings = SglangSettings(python=PYTHON)
    arguments = adapter_arguments(settings, LoraSettings(rank=RANK))
    started = [EngineProcess(settings, directory / f"{len(each)}.log", each) for each in (arguments, [])]
    try:
        for server in started:
            server.start(MODEL, ANCHOR)
        for server in started:
            wait_for(partial(server.is_ready, partial(answers, f"{server.url}/health")), "SGLang")
        yield started[0].url, started[1].url
    finally:
        for server in started:
            server.stop()


def rows_of(figures: dict[str, float], during: np.ndarray, without: np.ndarray) -> Iterator[Row]:
    merged, apart = figures["one policy"], figures["one policy, its adapter kept apart"]
    for count in (TOGETHER, 2 * TOGETHER):
        many = figures[f"{count} organisations"]
        yield Row(f"{count} organisations on one server", many, "tokens/s", "one policy", many / merged)
        yield Row(f"{count} organisations on one server", many, "tokens/s", "one adapter", many / apart)
    for name, found in (("while a version is loaded", during), ("without", without)):
        for part, share in (("p99", 0.99), ("median", 0.5)):
            yield Row(f"others' longest wait {name}, {part}", float(np.quantile(found, share)), "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", type=int, default=20)
    given = parser.parse_args()
    require_sglang()
    with tempfile.TemporaryDirectory() as name, servers(Path(name)) as (of_many, of_one):
        shared = Shared(of_many, Path(name) / "shared", 2 * TOGETHER)
        contenders = {
            f"{TOGETHER} organisations": partial(measure, of_many, shared.names[:TOGETHER], Rounds()),
            f"{2 * TOGETHER} organisations": partial(measure, of_many, shared.names, Rounds()),
            "one policy, its adapter kept apart": partial(measure, of_many, shared.names[:1], Rounds()),
            "one policy": partial(measure, of_one, (None,), Rounds()),
        }
        for contender in contenders.values():
            contender()  # warm up
        figures = interleave(contenders, given.rounds)
        found = asyncio.run(stalls(shared, given.loads))
    report("organisations_sglang", list(rows_of(figures, *found)))


if __name__ == "__main__":
    main()
