"""The engine's log-probabilities of the tokens that it sampled equal those of stock transformers."""

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest
import torch
from local_world import CONTEXT, VOCABULARY, Answer, Gate, World, answer, answers, assert_exact, prompt, request

from core import telemetry
from core.events import Sampling
from core.ids import base_ref
from core.settings import ServingSettings
from serving.engines.local import LocalEngine
from serving.engines.local.attention import Row
from serving.engines.local.model import Decoder, load_decoder, slot_cache
from serving.engines.local.modules.given import load_given, own_logits
from serving.engines.local.sampler import sample

LENGTHS = (1, 3, 16, 17, 40, 64, 90, 5)


def test_greedy_equals_generate_for_mixed_lengths_in_one_batch(
    world: World, make_engine: Callable[..., LocalEngine]
) -> None:
    asked = [request(prompt(n, n), temperature=0.0, max_tokens=24) for n in LENGTHS]
    for given in answers(make_engine(local={"slots": 6, "prefill_tokens": 32}), *asked):
        ids = torch.tensor([given.request.prompt_token_ids])
        made = world.models[base_ref(1)].generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, pad_token_id=0
        )
        assert given.token_ids == made[0, ids.shape[1] :].tolist()
        assert given.finish_reason == "length"
        assert_exact(world, given)  # at temperature 0, logprobs are at 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("slots", [3, 48])
def test_recorded_logprobs_are_those_of_a_full_forward_pass(
    world: World, make_engine: Callable[..., LocalEngine], temperature: float, slots: int
) -> None:
    asked = [request(prompt(n, n), temperature=temperature, max_tokens=30, seed=n) for n in LENGTHS]
    for given in answers(make_engine(local={"slots": slots, "prefill_tokens": 48}), *asked):
        assert_exact(world, given, temperature)


def test_a_seed_means_the_same_tokens_alone_and_in_a_batch(make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(local={"slots": 12})
    asked = request(prompt(1, 20), max_tokens=40, seed=7)
    others = [request(prompt(n, 2 * n), max_tokens=50) for n in range(2, 12)]
    (alone,) = answers(engine, asked)
    among, *rest = answers(engine, asked, *others)
    assert alone.token_ids == among.token_ids
    assert alone.logprobs == pytest.approx(among.logprobs, abs=5e-5)
    assert len({tuple(given.token_ids) for given in rest}) == len(rest)


def test_no_seed_draws_one(engine: LocalEngine) -> None:
    first, second = answers(engine, *[request(prompt(1, 20), max_tokens=20)] * 2)
    assert first.token_ids != second.token_ids


def test_a_reused_prefix_changes_nothing_and_is_used(world: World, make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(local={"slots": 4})
    (first,) = answers(engine, request(prompt(1, 40), max_tokens=20, seed=1))
    longer = [*prompt(1, 40), *first.token_ids, *prompt(2, 10)]
    before = telemetry.CACHED_TOKENS._value.get()
    (reused,) = answers(engine, request(longer, max_tokens=20, seed=2))
    assert reused.cached_tokens == 59  # the last sampled token was never computed
    assert telemetry.CACHED_TOKENS._value.get() - before == 59
    (fresh,) = answers(make_engine(local={"slots": 4}), request(longer, max_tokens=20, seed=2))
    assert fresh.cached_tokens == 0
    assert reused.token_ids == fresh.token_ids
    assert reused.logprobs == pytest.approx(fresh.logprobs, abs=5e-5)


def test_other_sessions_go_on_from_a_prefix_that_runs_or_is_longer(
    world: World, make_engine: Callable[..., LocalEngine]
) -> None:
    """A system prompt is computed once: while its first session runs, and beside what that leaves behind."""
    engine, system = make_engine(local={"slots": 6}), prompt(1, 48)

    async def beside() -> Answer:
        first_asked = request([*system, 7], max_tokens=80, seed=1)
        gate = Gate(engine, 1, lambda each: each.request is first_asked)
        first = asyncio.ensure_future(answer(engine, first_asked))
        await gate.shut()
        second = await answer(engine, request([*system, 9, 9], max_tokens=20, seed=2, temperature=0.5))
        assert not first.done()
        gate.open()
        assert_exact(world, await first)
        return second

    second = asyncio.run(beside())
    assert second.cached_tokens == 48
    assert_exact(world, second, 0.5)
    third, fourth = answers(engine, *(request([*system, n, n, n], max_tokens=20, seed=n) for n in (3, 4)))
    for each in (third, fourth):
        assert each.cached_tokens == 48
        assert_exact(world, each)
    (back,) = answers(engine, request([*system, 9, 9, *second.token_ids, 5], max_tokens=5, seed=5))
    assert back.cached_tokens == 48 + 2 + 19, "the longer conversation is still there"
    assert_exact(world, back)


def test_a_swap_takes_what_runs_from_others_until_it_is_computed_anew(
    world: World, make_engine: Callable[..., LocalEngine]
) -> None:
    engine, system = make_engine(local={"slots": 4}), prompt(1, 48)
    engine.load(world.publish(103))

    async def run() -> list[Answer]:
        first_asked = request(system, max_tokens=90, seed=1)
        gate = Gate(engine, 3, lambda each: each.request is first_asked)
        first = asyncio.ensure_future(answer(engine, first_asked))
        await gate.shut()
        await asyncio.to_thread(engine.switch, base_ref(103))
        gate.allow(3)
        await gate.shut()
        later = await answer(engine, request([*system, 3], max_tokens=10, seed=2))
        gate.open()
        return [later, await first]

    later, first = asyncio.run(run())
    assert later.cached_tokens == 48
    assert set(later.versions) == {103}
    for each in (later, first):
        assert_exact(world, each)


def test_the_whole_prompt_may_be_cached_but_its_last_token(make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(local={"slots": 4})
    first, *_ = answers(engine, request(prompt(1, 40), max_tokens=5, seed=1))
    (again,) = answers(engine, request(prompt(1, 40), max_tokens=5, seed=1))
    assert again.cached_tokens == 39
    assert again.token_ids == first.token_ids


def test_a_swap_in_mid_request_is_exact_on_both_sides(world: World, make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(local={"slots": 8})
    engine.load(world.publish(101))
    before = telemetry.REPREFILLED_TOKENS._value.get()

    async def run() -> list[Answer]:
        gate = Gate(engine, 40)
        asked = [request(prompt(n, n), max_tokens=60, seed=n, temperature=0.5) for n in LENGTHS]
        tasks = [asyncio.ensure_future(answer(engine, each)) for each in asked]
        await gate.shut()
        await asyncio.to_thread(engine.switch, base_ref(101))
        gate.open()
        return [await task for task in tasks]

    given = asyncio.run(run())
    assert {version for each in given for version in each.versions} == {1, 101}
    for each in given:
        assert each.versions == sorted(each.versions), "never back"
        assert len(each.token_ids) == 60
        assert all(len({chunk.version}) == 1 for chunk in each.chunks)
        assert_exact(world, each, 0.5)
    assert telemetry.REPREFILLED_TOKENS._value.get() > before


def test_what_is_not_to_be_remembered_is_not(make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(local={"slots": 1})
    said = request(prompt(3, 40), max_tokens=1)
    answers(engine, msgspec.structs.replace(said, remember=False))
    assert not engine._scheduler._slots._tokens_ST.any()
    assert [each.cached_tokens for _ in range(2) for each in answers(engine, said)] == [0, 39]


def test_a_prefix_is_never_reused_across_versions(world: World, make_engine: Callable[..., LocalEngine]) -> None:
    engine = make_engine(local={"slots": 2})
    answers(engine, request(prompt(1, 40), max_tokens=4))
    engine.load(world.publish(102))
    engine.switch(base_ref(102))
    (given,) = answers(engine, request(prompt(1, 40), max_tokens=10, seed=1))
    assert given.cached_tokens == 0
    assert set(given.versions) == {102}
    assert_exact(world, given)


def by_modules(world: World) -> Decoder:
    given = load_given(world.model_dir, "cpu", torch.float32)
    own_logits(given, torch.tensor([0]))  # it attends over slots from then on
    return Decoder(given, None)


@pytest.mark.parametrize("lean", [True, False])
def test_rows_of_any_shape_in_any_slots_are_computed_alike(world: World, lean: bool) -> None:
    """Spans contain idle rows, rows are gathered from afar, and prompts in parts run beside decoding rows."""
    decoder = load_decoder(world.model_dir, ServingSettings()) if lean else by_modules(world)
    cache = slot_cache(decoder.model, 40, CONTEXT)
    draw = random.Random(0)
    sequences = {slot: prompt(slot, 60) for slot in (0, 1, 3, 4, 17, 39)}
    computed = dict.fromkeys(sequences, 0)
    while any(at < 60 for at in computed.values()):
        chosen = draw.sample(sorted(computed), draw.randint(1, len(computed)))
        rows = [
            Row(slot, at, min(at + draw.choice((1, 1, 1, 2, 20)), 60)) for slot in chosen if (at := computed[slot]) < 60
        ]
        rows.sort(key=lambda row: row.end - row.start != 1)
        if not rows:
            continue
        logits = decoder.forward(cache, rows, [t for row in rows for t in sequences[row.slot][row.start : row.end]])
        for row, row_logits in zip(rows, logits, strict=True):
            with torch.inference_mode():
                stock = world.models[base_ref(1)](torch.tensor([sequences[row.slot][: row.end]])).logits[0, -1]
            assert torch.allclose(row_logits, stock, atol=1e-4)
            computed[row.slot] = row.end


class _Asking:
    def __init__(self, asked: object, seed: int, top_logprobs: int = 0) -> None:
        self.sampling = asked
        self.rng = random.Random(seed)
        self.output: list[int] = []
        self.top_logprobs = top_logprobs
        self.mask = None


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_samples_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.0, -3.0, 1.1]]).expand(500, -1)
    rows = [_Asking(Sampling(temperature=0.7), seed) for seed in range(500)]
    counts = torch.zeros(6)
    for _ in range(100):
        drawn = sample(logits, rows)
        counts += torch.bincount(torch.tensor(drawn.token_ids), minlength=6)
    probabilities = (logits[0] / 0.7).softmax(-1)
    assert chi_square(counts, probabilities) < 20.5  # 5 degrees of freedom: p = 0.001
    assert chi_square(counts, logits[0].softmax(-1)) > 1000, "the test can tell another temperature"


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 5), (1.0 - 2.0**-53, 9)])
def test_impossible_tokens_are_never_sampled(uniform: float, token: int) -> None:
    class Extreme(random.Random):
        def random(self) -> float:
            return uniform

    row = _Asking(Sampling(), 0)
    row.rng = Extreme()
    logits = torch.full((1, VOCABULARY), float("-inf"))
    logits[0, 5], logits[0, 9] = 0.0, 1.0
    assert sample(logits, [row]).token_ids == [token]
