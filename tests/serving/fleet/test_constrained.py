"""An answer of a remote engine is followed by its grammar: masks are recorded, and strange tokens noticed."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from policy_world import FACTS, asking, fleet_of

from core.errors import InvalidRequest
from core.events import Grammar, Sampling
from core.grammars.library import VERSION, grammars_of
from core.grammars.masks import Masks
from core.ids import base_ref
from core.ports import TokenChunk
from core.settings import ServingSettings
from serving.engines.sglang.generation.policy import SglangConnections
from serving.fleet import FleetPolicy
from serving.fleet.constrained import Followed

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
STOPS = (2, 0)
WAIT_S = 60.0
GRAMMAR = Grammar(text='start: "ab" | "ac"')
GRAMMARS = grammars_of(TINY)


def token(text: str) -> int:
    (found,) = GRAMMARS.tokenizer(STOPS).tokenize_str(text)
    return int(found)


def followed(*chunks: tuple[int, ...], grammar: Grammar = GRAMMAR) -> list[TokenChunk]:
    async def run() -> list[TokenChunk]:
        answer = await Followed.begin(GRAMMARS, grammar, STOPS, VERSION)
        return [
            await answer.take(TokenChunk(token_ids=ids, logprobs=(-0.5,) * len(ids), version=base_ref(1)))
            for ids in chunks
        ]

    return asyncio.run(run())


def test_each_chunk_has_the_record_of_all_masks_so_far() -> None:
    masks = Masks(GRAMMARS, GRAMMAR, STOPS)
    expected = []
    for each in (token("a"), token("b"), 2):
        masks.take(each)
        expected.append(masks.record())
    apart = followed((token("a"),), (token("b"),), (2,))
    assert [chunk.grammar for chunk in apart] == expected
    assert followed((token("a"), token("b"), 2))[0].grammar == expected[-1]
    assert all(chunk.untrainable_reasons == () for chunk in apart)


def test_masks_are_made_on_no_thread_that_reads_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take some milliseconds, for each token of as many answers as anybody asks for."""
    go, took = threading.Event(), Masks.take
    monkeypatch.setattr(Masks, "take", lambda *all: (go.wait(2 * WAIT_S), took(*all))[1])
    chunk = TokenChunk(token_ids=(token("a"),), logprobs=(-0.5,), version=base_ref(1))

    async def run() -> None:
        answers = [await Followed.begin(GRAMMARS, GRAMMAR, STOPS, VERSION) for _ in range(40)]
        taking = [asyncio.create_task(each.take(chunk)) for each in answers]
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.sleep(0)  # all of them begin before
                await asyncio.to_thread(lambda: None)
        finally:
            go.set()
            await asyncio.gather(*taking)

    asyncio.run(run())


@pytest.mark.parametrize("strange", [(token("x"),), (token("a"), 2), (token("a"), token("b"), 2, token("a"))])
def test_a_token_that_its_mask_does_not_allow_makes_the_turn_untrainable(strange: tuple[int, ...]) -> None:
    first, then = followed(strange, (token("b"),))
    assert first.untrainable_reasons == then.untrainable_reasons == ("other_masks",)


def test_what_is_no_grammar_is_refused_before_an_engine_is_asked() -> None:
    with pytest.raises(InvalidRequest):
        followed((1,), grammar=Grammar(text="start: nowhere"))


@pytest.mark.parametrize(
    ("llguidance", "reason"),
    [("", "other_grammar_library"), ("0.0.1", "other_grammar_library"), (VERSION, "other_masks")],
)
def test_only_an_engine_with_the_same_library_is_followed(
    tmp_path: Path, llguidance: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines answer what the grammar does not allow, which is noticed where masks can be made again at all."""
    monkeypatch.setattr(GRAMMARS, "prepare", None)

    async def run() -> list[TokenChunk]:
        async with fleet_of(tmp_path) as world:
            for name in world.servers:
                world.beat(name, llguidance=llguidance)
            connections = SglangConnections(ServingSettings().sglang)
            policy = FleetPolicy(world.table.view, connections, ServingSettings(), FACTS, world.table.clock, GRAMMARS)
            assert GRAMMARS.prepare == GRAMMARS.matcher, "where it is compiled in a caller's own line"
            sampling = Sampling(max_tokens=3, grammar=GRAMMAR)
            request = msgspec.structs.replace(asking(), sampling=sampling, stop_token_ids=STOPS)
            try:
                return [chunk async for chunk in policy.generate(request)]
            finally:
                await policy.aclose()

    chunks = asyncio.run(run())
    assert chunks
    assert all((chunk.grammar, chunk.untrainable_reasons) == (None, (reason,)) for chunk in chunks)
