"""A real SGLang server retracts requests of low priority for others, and they go on from the tokens they had."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sglang_server import MODEL, SglangServer, sglang_server
from transformers import AutoModelForCausalLM

from core.events import Priority, Sampling
from core.ids import InferenceId
from core.ports import GenerateRequest
from core.settings import SglangSettings
from serving.engines.sglang.generation.policy import SglangConnections

pytestmark = pytest.mark.timeout(900)  # a server starts within, on whatever machine
LONG, SHORT = 300, 20
SLOTS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    directory: Path = tmp_path_factory.mktemp("priorities")
    with sglang_server(MODEL, directory, extra=("--max-running-requests", str(SLOTS))) as made:
        yield made


class Asked:
    def __init__(self, connections: SglangConnections, url: str, number: int, priority: Priority, tokens: int) -> None:
        self.request = GenerateRequest(
            inference_id=InferenceId(str(number)),
            prompt_token_ids=tuple(range(5 + number, 25 + number)),
            sampling=Sampling(max_tokens=tokens),
            stop_token_ids=(),
            priority=priority,
        )
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.was_retracted = False
        self.done = asyncio.ensure_future(self._read(connections, url))

    async def _read(self, connections: SglangConnections, url: str) -> None:
        async for chunk in connections.generation(url, self.request).stream():
            self.token_ids += chunk.token_ids
            self.logprobs += chunk.logprobs
            self.was_retracted = self.was_retracted or not chunk.confirmed


def test_users_pass_rollouts_which_lose_no_token(server: SglangServer) -> None:
    async def run() -> list[Asked]:
        connections = SglangConnections(SglangSettings())
        rollouts = [Asked(connections, server.url, n, "low", LONG) for n in range(SLOTS)]
        while not all(len(each.token_ids) > 5 for each in rollouts):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        users = [Asked(connections, server.url, 10 + n, "normal", SHORT) for n in range(SLOTS)]
        await asyncio.gather(*(each.done for each in users))
        assert not any(each.done.done() for each in rollouts), "users did not wait for a slot"
        await asyncio.gather(*(each.done for each in rollouts))
        await connections.aclose()
        return [*rollouts, *users]

    asked = asyncio.run(run())
    assert any(each.was_retracted for each in asked[:SLOTS])
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    for each in asked:
        assert len(each.token_ids) == each.request.sampling.max_tokens
        tokens = torch.tensor([[*each.request.prompt_token_ids, *each.token_ids]])
        with torch.inference_mode():
            scored = model(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        expected = scored[len(each.request.prompt_token_ids) - 1 :]
        assert (expected - torch.tensor(each.logprobs)).abs().max() < 1e-3
