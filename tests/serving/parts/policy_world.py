"""Two scripted servers, the table that names them, and a policy in front."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fleet_table import LIVE, FleetTable
from scripted_sglang import ScriptedSglang
from stepping import step

from core.events import Sampling
from core.ids import InferenceId
from core.ports import GenerateRequest, TokenChunk
from core.settings import ServingSettings
from serving.engines.model_facts import ModelFacts
from serving.engines.sglang.generation.policy import SglangConnections
from serving.fleet import FleetPolicy

FACTS = ModelFacts(vocabulary=50, context_length=40, is_moe=False)
PATIENCE_S = 60.0  # of a machine that does much else


class World:
    """Servers `a` and `b`; a request without a session goes to `a` first."""

    def __init__(self, table: FleetTable, *, names_versions: bool = False, **settings: Any) -> None:
        self.table, self.servers = table, {"a": ScriptedSglang(), "b": ScriptedSglang()}
        serving = ServingSettings(**settings)
        engines = SglangConnections(serving.sglang, names_versions=names_versions)
        self.policy = FleetPolicy(table.view, engines, serving, FACTS, table.clock)
        table.view.on_look = self.policy.notice

    @property
    def a(self) -> ScriptedSglang:
        return self.servers["a"]

    @property
    def b(self) -> ScriptedSglang:
        return self.servers["b"]

    def beat(self, name: str, **changes: Any) -> None:
        self.table.beat(name, **{"url": self.servers[name].url, **changes})
        step(self.table.view, 0)

    async def ask(self, max_tokens: int = 3, **fields: Any) -> list[TokenChunk]:
        async with asyncio.timeout(PATIENCE_S):
            return [chunk async for chunk in self.policy.generate(asking(max_tokens, **fields))]


def asking(max_tokens: int = 3, *, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=prompt,
        sampling=Sampling(max_tokens=max_tokens),
        stop_token_ids=(),
        **fields,
    )


@asynccontextmanager
async def fleet_of(tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    table = FleetTable(tmp_path / "store.db")
    world = World(table, **{"fleet": {"engine_wait_s": PATIENCE_S}, **settings})
    table.release(LIVE)
    for name, server in world.servers.items():
        await server.start()
        world.beat(name)
    try:
        yield world
    finally:
        await world.policy.aclose()
        for server in world.servers.values():
            await server.close()
        table.store.close()
