"""One engine speaks for many policies: in one pass, each with its own adapter, and none notices another."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from adapter_world import Adapters
from local_world import Answer, Gate, answer, answers, prompt, request

from core.errors import EngineUnavailable, NotFinite
from core.events import Sampling
from core.ids import BASE, PolicyName, PolicyRef, Version, base_ref
from core.ports import GenerateRequest, WeightsRef
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine
from serving.engines.local.model import Decoder

POLICIES = [PolicyName(name) for name in ("acme", "globex", "initech")]
BOUND = 5e-5  # nats: what two orders of summation differ by


def ref(policy: PolicyName, number: int) -> PolicyRef:
    return PolicyRef(policy, Version(number))


def of(policy: PolicyName, asked: GenerateRequest) -> GenerateRequest:
    return msgspec.structs.replace(asked, policy=policy)


@pytest.fixture
def world(tmp_path: Path) -> Adapters:
    return Adapters(tmp_path)


@pytest.fixture
def engine(world: Adapters) -> Iterator[LocalEngine]:
    """Yield an engine that serves version 2 of each policy, and the given model to the rest."""
    settings = ServingSettings(local=LocalEngineSettings(slots=12))
    engine = LocalEngine(settings, world.model_dir, world.weights, world.anchor, keeps_adapters=True)
    engine.start()
    for policy in POLICIES:
        engine.load(world.adapter(ref(policy, 2)))
        engine.switch(ref(policy, 2))
    yield engine
    engine.close()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of rows of all passes from here on."""
    rows: list[int] = []
    forward = Decoder.forward

    def counted(self: Decoder, cache: Any, given: Any, tokens: Any, **options: Any) -> torch.Tensor:
        rows.append(len(given))
        return forward(self, cache, given, tokens, **options)

    monkeypatch.setattr(Decoder, "forward", counted)
    return rows


def assert_of(world: Adapters, given: Answer, version: PolicyRef) -> None:
    """Assert that every token was sampled from this very version."""
    assert {chunk.version for chunk in given.chunks} == {version}
    tokens = [*given.request.prompt_token_ids, *given.token_ids]
    expected = world.score_unmerged(tokens, version)[len(given.request.prompt_token_ids) - 1 :]
    assert (expected - torch.tensor(given.logprobs)).abs().max() <= BOUND


def test_versions_of_many_policies_share_each_pass(world: Adapters, engine: LocalEngine, passes: list[int]) -> None:
    asked = [of(policy, request(prompt(7, 30), max_tokens=30)) for policy in (*POLICIES, BASE) * 3]
    given = answers(engine, *asked)
    for each in given:
        policy = each.request.policy
        assert_of(world, each, base_ref(1) if policy == BASE else ref(policy, 2))
    assert max(passes) == len(asked), "all of them together"
    assert len(passes) <= 30 + len(asked), "and not each policy in passes of its own"


def test_large_adapters_are_multiplied_together_and_say_the_same(
    world: Adapters, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two policies have such here; the third has seats, as small ones have."""
    monkeypatch.setattr("serving.engines.local.modules.products.MOST_SEATED", 0)
    for policy in POLICIES[:2]:
        engine.load(world.adapter(ref(policy, 3)))
        engine.switch(ref(policy, 3))
    asked = [of(policy, request(prompt(3, 20), max_tokens=12)) for policy in (*POLICIES, BASE) * 2]
    for each in answers(engine, *asked):
        number = 3 if each.request.policy in POLICIES[:2] else 2
        assert_of(world, each, base_ref(1) if each.request.policy == BASE else ref(each.request.policy, number))


def test_rows_far_apart_in_their_slots_say_the_same(world: Adapters, engine: LocalEngine) -> None:
    """Requests of other lengths end in between, and leave slots free."""
    lengths = [3, 60, 4, 5, 50, 3, 4, 5, 6, 3, 4, 40]
    asked = [
        of((*POLICIES, BASE)[place % 4], request(prompt(place, 20), max_tokens=length))
        for place, length in enumerate(lengths)
    ]
    for each in answers(engine, *asked):
        assert_of(world, each, base_ref(1) if each.request.policy == BASE else ref(each.request.policy, 2))


def test_no_policy_goes_on_from_what_another_computed(engine: LocalEngine) -> None:
    words = prompt(1, 40)
    found = [
        answers(engine, of(policy, request(words, max_tokens=4)))[0].cached_tokens
        for policy in ("acme", "acme", "globex", BASE, "initech", "globex")
    ]
    assert [bool(cached) for cached in found] == [False, True, False, False, False, True]


def test_a_swap_of_one_policy_is_noticed_by_no_other(world: Adapters, engine: LocalEngine) -> None:
    engine.load(world.adapter(ref(POLICIES[0], 3)))
    asked = [of(policy, request(prompt(5, 20), max_tokens=100, seed=4)) for policy in POLICIES]
    undisturbed = answers(engine, *asked)

    async def swapping() -> list[Answer]:
        gate = Gate(engine, 30)
        running = [asyncio.create_task(answer(engine, each)) for each in asked]
        await gate.shut()
        await asyncio.to_thread(engine.switch, ref(POLICIES[0], 3))
        gate.open()
        return await asyncio.gather(*running)

    swapped, *others = asyncio.run(swapping())
    assert {chunk.version for chunk in swapped.chunks} == {ref(POLICIES[0], 2), ref(POLICIES[0], 3)}
    for before, after in zip(undisturbed[1:], others, strict=True):
        assert after.token_ids == before.token_ids
        assert_of(world, after, ref(after.request.policy, 2))


def test_the_given_model_is_each_policys_first_version_and_takes_no_room(world: Adapters, engine: LocalEngine) -> None:
    first = ref(POLICIES[0], 1)
    engine.load(WeightsRef(version=first, digest=world.anchor.digest, path=world.anchor.path))
    engine.switch(first)
    assert engine._versions.decoders[first] is engine._versions.decoders[base_ref(1)]
    (given,) = answers(engine, of(POLICIES[0], request(prompt(2, 20), max_tokens=10)))
    assert_of(world, given, first)


def test_numbers_that_are_not_finite_are_their_own_policys_fault(world: Adapters, engine: LocalEngine) -> None:
    engine.load(world.adapter(ref(POLICIES[0], 3), size=float("nan")))
    assert engine.probe(ref(POLICIES[0], 3))["finite"] == 0
    engine.switch(ref(POLICIES[0], 3))

    async def ask() -> list[Answer | BaseException]:
        asked = [of(policy, request(prompt(5, 20), max_tokens=20)) for policy in POLICIES]
        return await asyncio.gather(*(answer(engine, each) for each in asked), return_exceptions=True)

    broken, *fine = asyncio.run(ask())
    assert isinstance(broken, NotFinite)
    assert broken.version == ref(POLICIES[0], 3)
    for each in fine:
        assert isinstance(each, Answer)
        assert_of(world, each, ref(each.request.policy, 2))


def test_a_policy_without_a_version_is_answered_by_nobody(engine: LocalEngine) -> None:
    asked = GenerateRequest(
        inference_id=request([1]).inference_id,
        prompt_token_ids=(1, 2),
        sampling=Sampling(max_tokens=1),
        stop_token_ids=(),
        policy=PolicyName("umbrella"),
    )
    with pytest.raises(EngineUnavailable, match="no version of policy umbrella serves yet"):
        answers(engine, asked)
