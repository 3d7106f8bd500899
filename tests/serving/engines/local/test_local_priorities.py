"""Requests of low priority fill the engine, give way to all others, and lose no token by it."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from local_world import Answer, Gate, World, answer, answers, assert_exact, prompt, request, until

from core import telemetry
from core.errors import Conflict
from core.ids import base_ref
from core.ports import GenerateRequest
from serving.engines.local import LocalEngine
from serving.engines.local.attention import GaveWay, Row
from serving.engines.local.model import Decoder
from serving.engines.local.sequence import Sequence

MakeEngine = Callable[..., LocalEngine]


def low(*given: Any, **fields: Any) -> GenerateRequest:
    remember = fields.pop("remember", True)
    return msgspec.structs.replace(request(*given, **fields), priority="low", remember=remember)


def is_low(each: Sequence) -> bool:
    return each.is_low


def paused() -> float:
    return telemetry.PAUSED_REQUESTS._value.get()


class Asked:
    """An answer that is under way, and how many chunks of it have come."""

    def __init__(self, engine: LocalEngine, wanted: GenerateRequest) -> None:
        self.chunks = 0
        self.task = asyncio.ensure_future(answer(engine, wanted, self._count))

    def _count(self) -> None:
        self.chunks += 1


async def passed_by_users(engine: LocalEngine, gate: Gate, rollouts: int) -> list[Asked]:
    """Let so many of low priority begin, and as many users come as there are slots; return when all of those began."""
    await gate.asked(rollouts)
    gate.allow(20 * rollouts)
    await gate.shut()
    before, slots = paused(), len(engine._scheduler._slots._is_free_S)
    users = [Asked(engine, request(prompt(10 + n, 30), max_tokens=100, seed=n)) for n in range(slots)]
    await gate.asked(slots)
    gate.allow(2 * slots)
    await gate.shut()
    assert paused() == before + rollouts
    return users


def test_whoever_waits_gets_a_slot_and_the_paused_go_on_exactly(world: World, make_engine: MakeEngine) -> None:
    wanted = [low(prompt(n, 20 + n), max_tokens=100, seed=n, remember=not n) for n in range(2)]
    alone = answers(make_engine(local={"slots": 4}), *wanted)
    engine, before = make_engine(local={"slots": 2}), paused()

    async def crowd() -> tuple[list[Answer], list[Answer]]:
        gate = Gate(engine, 16)  # as many as it takes until some are told
        rollouts = [Asked(engine, wanted[0])]
        await until(lambda: rollouts[0].chunks > 0)
        rollouts.append(Asked(engine, wanted[1]))
        users: list[Answer] = []
        for seeds in ((9,), (10,), (30, 31)):
            asked = [Asked(engine, request(prompt(seed, 30), max_tokens=20, seed=seed)) for seed in seeds]
            await until(lambda asked=asked: sum(not is_low(each) for each in engine._scheduler._inbox) == len(asked))
            gate.allow(20 * len(asked) + 10)  # what they are told, and some more of the rollouts
            users += [await each.task for each in asked]
            await gate.shut()
        assert not any(each.task.done() for each in rollouts)
        gate.open()
        return users, [await each.task for each in rollouts]

    users, rollouts = asyncio.run(crowd())
    assert paused() > before
    for each in (*users, *rollouts):
        assert_exact(world, each)
    assert [each.token_ids for each in rollouts] == [each.token_ids for each in alone]
    for given, expected in zip(rollouts, alone, strict=True):
        assert given.logprobs == pytest.approx(expected.logprobs, abs=5e-5)


def test_the_paused_go_on_under_the_version_that_went_live_meanwhile(world: World, make_engine: MakeEngine) -> None:
    """One that is pinned does not, and its version stays."""
    engine = make_engine(local={"slots": 4})
    engine.load(world.publish(209))

    async def run() -> tuple[Answer, Answer]:
        gate = Gate(engine, 0)
        rollout = Asked(engine, low(prompt(1, 30), max_tokens=80, seed=1))
        pinned = Asked(engine, low(prompt(2, 30), max_tokens=80, seed=2, version=1))
        users = await passed_by_users(engine, gate, 2)
        await asyncio.to_thread(engine.switch, base_ref(209))
        with pytest.raises(Conflict):
            await asyncio.to_thread(engine.unload, base_ref(1))
        gate.open()
        await asyncio.gather(*(user.task for user in users))
        return await rollout.task, await pinned.task

    given, of_pinned = asyncio.run(run())
    assert set(given.versions) == {1, 209}
    assert set(of_pinned.versions) == {1}
    for each in (given, of_pinned):
        assert len(each.token_ids) == 80
        assert_exact(world, each)


def test_the_paused_may_be_given_up_and_end_with_the_engine(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 4})

    async def run() -> tuple[Answer, list[int]]:
        gate = Gate(engine, 0)
        rollouts = [Asked(engine, low(prompt(n, 30), max_tokens=100, seed=n)) for n in range(2)]
        users = await passed_by_users(engine, gate, 2)
        rollouts[1].task.cancel()
        await asyncio.wait([rollouts[1].task])
        gate.allow(4)
        await gate.shut()
        (left,) = engine._scheduler._waiting
        await asyncio.to_thread(engine.close)
        await asyncio.gather(*(user.task for user in users))
        return await rollouts[0].task, left.output

    given, sampled = asyncio.run(run())
    assert given.finish_reason == "abort"
    assert given.token_ids == sampled, "what was held back of them, too"
    assert_exact(world, given)


def test_users_are_served_first_and_others_in_the_order_in_which_they_came(make_engine: MakeEngine) -> None:
    engine, ended = make_engine(local={"slots": 1}), []

    async def run() -> None:
        async def one(wanted: GenerateRequest) -> None:
            await answer(engine, wanted)
            ended.append(wanted.priority)
            if wanted.priority == "low":
                ended.append(len(wanted.prompt_token_ids))

        gate = Gate(engine, 0)
        first = asyncio.ensure_future(one(low(prompt(1, 21), max_tokens=60)))
        await gate.asked(1)
        gate.allow(1)
        await gate.shut()
        others = [low(prompt(n, 20 + n), max_tokens=5) for n in (2, 3)]
        others += [request(prompt(n, 20), max_tokens=5) for n in (4, 5)]
        tasks = [asyncio.ensure_future(one(each)) for each in others]
        await gate.asked(len(tasks))
        gate.open()
        await asyncio.gather(first, *tasks)

    asyncio.run(run())
    assert ended == ["normal", "normal", "low", 21, "low", 22, "low", 23]


def test_a_prefix_of_half_the_slots_is_out_of_reach_of_low_priority(make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 4})
    users = [request(prompt(n, 40), max_tokens=4, seed=n) for n in range(4)]
    answers(engine, *users)
    answers(engine, *[low(prompt(50 + n, 40), max_tokens=4, seed=n) for n in range(12)])
    again = answers(engine, *reversed(users))
    assert sorted(each.cached_tokens for each in again) == [0, 0, 39, 39]


def test_a_step_of_low_priority_gives_way_between_two_layers(world: World, make_engine: MakeEngine) -> None:
    """The step that is given up leaves nothing behind: the same step again computes the same."""
    engine = make_engine(local={"slots": 2})
    decoder, cache = engine._scheduler.models[base_ref(1)], engine._scheduler._cache
    tokens, asked = prompt(3, 24), iter([False, False, True])
    engine.close()
    with pytest.raises(GaveWay):
        decoder.forward(cache, [Row(0, 0, 24)], tokens, must_give_way=lambda: next(asked))
    with pytest.raises(StopIteration):
        next(asked)
    expected = world.models[base_ref(1)](torch.tensor([tokens])).logits[0, -1]
    assert torch.allclose(decoder.forward(cache, [Row(0, 0, 24)], tokens)[0], expected, atol=1e-3)


def test_a_user_who_comes_ends_the_step_that_runs(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gave_way, steps = make_engine(local={"slots": 2}), [], []
    forward = Decoder.forward

    def slow(self: Decoder, cache: Any, rows: Any, tokens: Any, *, must_give_way: Any = None, **given: Any) -> Any:
        if must_give_way is None:
            return forward(self, cache, rows, tokens, **given)
        steps.append(len(tokens))
        if len(steps) == 3:  # as long a step as it takes for somebody to come
            while not must_give_way():
                pass
        try:
            return forward(self, cache, rows, tokens, must_give_way=must_give_way, **given)
        except GaveWay:
            gave_way.append(len(steps))
            raise

    monkeypatch.setattr(Decoder, "forward", slow)

    async def run() -> None:
        rollout = Asked(engine, low(prompt(1, 90), max_tokens=20, seed=1))
        await until(lambda: len(steps) == 3)
        await answer(engine, request(prompt(2, 20), max_tokens=5))
        assert len((await rollout.task).token_ids) == 20

    asyncio.run(run())
    assert gave_way == [3]
    assert steps[:5] == [16, 32, 42, 32, 10], "a smaller part of the prompt after that, and larger ones before"


def test_nothing_of_low_priority_is_in_a_users_steps(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, forward, of_users = make_engine(local={"slots": 4}), Decoder.forward, []

    def counting(self: Decoder, cache: Any, rows: Any, tokens: Any, *, must_give_way: Any = None, **given: Any) -> Any:
        if must_give_way is None:
            of_users.append(len(rows))
        return forward(self, cache, rows, tokens, must_give_way=must_give_way, **given)

    monkeypatch.setattr(Decoder, "forward", counting)

    async def run() -> None:
        rollout = Asked(engine, low(prompt(1, 30), max_tokens=90, seed=1))
        await until(lambda: rollout.chunks > 0)
        await answer(engine, request(prompt(2, 20), max_tokens=20))
        assert len((await rollout.task).token_ids) == 90

    asyncio.run(run())
    assert of_users == [1] * 20


def test_the_event_loop_keeps_the_interpreter_while_nobody_waits_for_the_engine(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_s, forward, intervals_s = sys.getswitchinterval(), Decoder.forward, {True: set(), False: set()}

    def noting(self: Decoder, cache: Any, rows: Any, tokens: Any, *, must_give_way: Any = None, **given: Any) -> Any:
        intervals_s[must_give_way is not None].add(round(sys.getswitchinterval(), 6))
        return forward(self, cache, rows, tokens, must_give_way=must_give_way, **given)

    monkeypatch.setattr(Decoder, "forward", noting)
    sys.setswitchinterval(0.0001)
    try:
        engine = make_engine(local={"slots": 2})
        answers(engine, low(prompt(1, 30), max_tokens=30), request(prompt(2, 30), max_tokens=10))
        asyncio.run(until(lambda: round(sys.getswitchinterval(), 6) == 0.0001))  # once it has nothing to do
        answers(engine, request(prompt(3, 30), max_tokens=10))
        engine.close()
        assert intervals_s == {True: {0.005}, False: {0.0001}}
        assert round(sys.getswitchinterval(), 6) == 0.0001, "however often it changed"
    finally:
        sys.setswitchinterval(before_s)


def test_numbers_that_are_none_do_not_outlive_a_step_that_gave_way(
    world: World, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, forward, is_spoilt = make_engine(local={"slots": 1}), Decoder.forward, False

    def spoils(self: Decoder, cache: Any, rows: Any, tokens: Any, *, must_give_way: Any = None, **given: Any) -> Any:
        nonlocal is_spoilt
        if must_give_way is not None and not is_spoilt:
            is_spoilt = True
            cache.keys_STKD[0][rows[0].slot, : len(tokens)] = float("nan")
            while not must_give_way():
                pass
            raise GaveWay
        return forward(self, cache, rows, tokens, must_give_way=must_give_way, **given)

    monkeypatch.setattr(Decoder, "forward", spoils)

    async def run() -> Answer:
        rollout = Asked(engine, low(prompt(1, 90), max_tokens=20, seed=1))
        await until(lambda: engine._scheduler._running != [])
        given = await answer(engine, request(prompt(2, 5), max_tokens=5, seed=1))
        rollout.task.cancel()
        return given

    assert_exact(world, asyncio.run(run()))


def test_what_nobody_waits_for_is_told_some_tokens_at_a_time(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 2})
    (given,) = answers(engine, low(prompt(1, 30), max_tokens=40, seed=1))
    assert len(given.chunks) <= 3
    assert all(len(chunk.token_ids) % 16 == 0 for chunk in given.chunks[:-1])
    assert len(given.token_ids) == 40
    assert_exact(world, given)
