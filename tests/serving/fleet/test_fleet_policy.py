"""One request and servers that may lose it: which server is asked, which next, and what the caller gets."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fleet_table import LIVE, FleetTable
from policy_world import PATIENCE_S, World, asking, fleet_of
from scripted_sglang import (
    Line,
    answers,
    dies,
    dies_after_a_token,
    dies_after_the_headers,
    ends_without_an_end,
    gives_up,
    hangs,
    hangs_after_a_token,
    is_busy,
    refuses,
    refuses_midway,
)
from sglang_server import free_port
from stepping import step

from core import telemetry
from core.errors import EngineUnavailable, InvalidRequest, NotFinite
from core.events import Sampling
from core.ids import UNKNOWN, PolicyRef, base_ref
from core.ports import TokenChunk
from core.settings import ServingSettings, SglangSettings, SglangTimeoutSettings
from serving.engines.model_facts import ModelFacts
from serving.engines.sglang.generation.policy import SglangConnections
from serving.fleet import FleetPolicy
from serving.fleet import policy as fleet_policy

NEXT = base_ref(4)


def told(chunks: list[TokenChunk]) -> list[tuple[str | None, int]]:
    return [(chunk.replica, token) for chunk in chunks for token in chunk.token_ids]


NAMED = {LIVE: "onward-3-0123456789ab", NEXT: "onward-4-ba9876543210"}


async def speaks_upon_the_anchor(line: Line) -> web.StreamResponse:
    await line.token(7, label="1")
    await line.token(8, {"type": "length"}, label="1")
    return await line.end()


async def has_no_such_adapter(line: Line) -> web.StreamResponse:
    message = "Got LoRA adapter that has never been loaded: onward-3-0123456789ab"
    await line.write({"error": {"message": message, "code": 400}})
    return await line.end()


@pytest.fixture
def long_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who failed a moment ago be asked last, although a busy machine takes long for that moment."""
    monkeypatch.setattr(fleet_policy, "_SUSPECT_S", PATIENCE_S)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0.005)


def figure(name: str, **labels: str) -> float:
    return telemetry.REGISTRY.get_sample_value(f"onward_{name}", labels) or 0.0


def retries() -> float:
    return figure("router_retries_total")


# ------------------------------------------------------------------------------------------------ answered


def test_chunks_bear_the_name_of_who_spoke_and_connections_are_kept(tmp_path: Path) -> None:
    async def run() -> None:
        tokens, cached = figure("generated_tokens_total"), figure("cached_tokens_total")
        async with fleet_of(tmp_path) as world:
            chunks = await world.ask()
            assert told(chunks) == [("a", 10), ("a", 11), ("a", 12)]
            assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
            assert {chunk.version for chunk in chunks} == {LIVE}
            assert world.a.asked[0]["input_ids"] == [1, 2, 3]
            for _ in range(3):
                await world.ask()
            assert len(world.a.connections) == 1  # kept and used again
            assert world.b.asked == []
        assert figure("generated_tokens_total") - tokens == 12
        assert figure("cached_tokens_total") - cached == 4
        assert figure("running_requests") == 0

    asyncio.run(run())


def test_a_session_goes_to_one_replica_and_the_idle_one_is_asked_without(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            for session in map(str, range(8)):
                found = {told(await world.ask(1, cache_key=session))[0][0] for _ in range(3)}
                assert len(found) == 1
            assert world.a.asked
            assert world.b.asked
            world.a.scripts.append(hangs_after_a_token)
            stream = world.policy.generate(asking())
            assert (await anext(stream)).replica == "a"
            assert told(await world.ask(1)) == [("b", 10)]
            await stream.aclose()

    asyncio.run(run())


def test_the_first_token_of_each_newer_version_is_told_once(tmp_path: Path) -> None:
    async def changes(line: Line) -> web.StreamResponse:
        await line.token(7, label=str(LIVE))
        await line.token(8, label=str(NEXT))  # a guess until the end
        await line.token(9, {"type": "length"}, label=str(NEXT))
        return await line.end()

    async def speaks_the_next(line: Line) -> web.StreamResponse:
        await line.token(7, {"type": "length"}, label=str(NEXT))
        return await line.end()

    async def run() -> None:
        heard: list[PolicyRef] = []
        async with fleet_of(tmp_path) as world:
            world.policy.on_first_token = lambda version, _: heard.append(version)
            world.a.scripts += [changes, speaks_the_next, speaks_the_next]
            await world.ask()
            assert heard == [LIVE]
            await world.ask(1)
            await world.ask(1)
            await world.ask(1)  # the old one again
        assert heard == [LIVE, NEXT]

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ lost


@pytest.mark.usefixtures("long_suspected")
@pytest.mark.parametrize("loses", [dies, dies_after_the_headers, ends_without_an_end, is_busy, gives_up])
def test_what_is_lost_before_a_token_is_asked_of_another(tmp_path: Path, loses: Any) -> None:
    async def run() -> None:
        before = retries(), figure("replica_requests_total", replica="a", outcome="unavailable")
        async with fleet_of(tmp_path) as world:
            world.a.scripts.append(loses)
            assert told(await world.ask()) == [("b", 10), ("b", 11), ("b", 12)]
            assert len(world.a.asked) == 1
            assert world.a.asked[0]["rid"] != world.b.asked[0]["rid"]
            assert told(await world.ask(1)) == [("b", 10)]  # who failed a moment ago is asked last
        assert retries() - before[0] == 1
        assert figure("replica_requests_total", replica="a", outcome="unavailable") - before[1] == 1

    asyncio.run(run())


def test_what_nobody_listens_to_is_asked_of_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            world.beat("a", url=f"http://127.0.0.1:{free_port()}")
            assert told(await world.ask(1)) == [("b", 10)]

    asyncio.run(run())


def test_numbers_that_are_not_finite_are_asked_of_nobody_else(tmp_path: Path) -> None:
    """Another replica would compute the same, and this one lost nothing."""

    async def says_null(line: Line) -> Any:
        meta = {"completion_tokens": 1, "weight_version": "3", "output_token_logprobs": [[None, 7, None]]}
        await line.write({"output_ids": [7], "meta_info": meta})
        return await line.end()

    async def run() -> None:
        before = retries()
        async with fleet_of(tmp_path) as world:
            world.a.scripts.append(says_null)
            with pytest.raises(NotFinite, match="version 3"):
                await world.ask()
            assert world.b.asked == []
            assert told(await world.ask(1)) == [("a", 10)], "and it is asked the next"
        assert retries() == before

    asyncio.run(run())


def test_what_is_lost_after_a_token_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        before = retries()
        async with fleet_of(tmp_path) as world:
            world.a.scripts.append(dies_after_a_token)
            stream = world.policy.generate(asking())
            assert (await anext(stream)).token_ids == (7,)
            with pytest.raises(EngineUnavailable):
                await anext(stream)
            assert world.b.asked == []
        assert retries() == before
        assert figure("running_requests") == 0

    asyncio.run(run())


def test_who_failed_is_asked_again_when_nobody_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough that the first is suspected still when the second is chosen: else that one is never asked.
    monkeypatch.setattr(fleet_policy, "_SUSPECT_S", 1.0)

    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            world.a.scripts.append(dies)
            world.b.scripts.append(dies)
            assert {replica for replica, _ in told(await world.ask())} <= {"a", "b"}
            assert len(world.a.asked) + len(world.b.asked) == 3

    asyncio.run(run())


@pytest.mark.usefixtures("long_suspected")
def test_when_all_lose_it_for_long_the_caller_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path, fleet={"engine_wait_s": 1.0}) as world:
            world.a.scripts.append(dies)
            world.b.scripts.append(dies)
            with pytest.raises(EngineUnavailable, match="every engine lost the request"):
                await world.ask()

    asyncio.run(run())


@pytest.mark.parametrize("refusing", [refuses, refuses_midway])
def test_what_is_refused_is_asked_of_nobody_else(tmp_path: Path, refusing: Any) -> None:
    async def run() -> None:
        before = retries()
        async with fleet_of(tmp_path) as world:
            world.a.scripts.append(refusing)
            with pytest.raises(InvalidRequest) as refused:
                await world.ask()
            assert refused.value.param == "top_p"
            assert world.b.asked == []
            assert told(await world.ask(1)) == [("a", 10)]  # nor does it make a suspect
        assert retries() == before

    asyncio.run(run())


def test_what_the_model_cannot_do_is_asked_of_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path, context_length=20) as world:
            assert world.policy.context_length == 20
            for wrong, param in ((asking(prompt=(50,)), "prompt_token_ids"), (asking(18), "max_tokens")):
                with pytest.raises(InvalidRequest) as refused:
                    await anext(world.policy.generate(wrong))
                assert refused.value.param == param
            assert world.a.asked == []

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ hanging


def test_who_hangs_while_its_host_is_away_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_policy, "_SILENT_S", 0.05)

    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            world.a.scripts += [hangs_after_a_token, hangs]
            begun = world.policy.generate(asking())
            assert (await anext(begun)).token_ids == (7,)
            waiting = asyncio.ensure_future(world.ask(1, cache_key=key_of(world, "a")))
            await until(lambda: len(world.a.asked) == 2)
            ending = asyncio.ensure_future(anext(begun))
            await until(lambda: looked(world, serving=None) and waiting.done() and ending.done())
            assert told(waiting.result()) == [("b", 10)]
            with pytest.raises(EngineUnavailable):
                ending.result()

    asyncio.run(run())


def looked(world: World, **changes: Any) -> bool:
    world.beat("a", **changes)
    return True


def key_of(world: World, name: str) -> str:
    """Return the key of a session that goes to this server."""
    snapshot = world.table.view.snapshot
    keys = (str(number) for number in range(1000))
    return next(key for key in keys if fleet_policy.choose(snapshot, None, key, {})[0].name == name)


def test_a_hosts_word_is_not_believed_against_tokens_that_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_policy, "_SILENT_S", PATIENCE_S)

    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            gate = asyncio.Event()

            async def goes_on(line: Line) -> web.StreamResponse:
                await line.token(7)
                await gate.wait()
                await line.token(8, {"type": "length"})
                return await line.end()

            world.a.scripts.append(goes_on)
            stream = world.policy.generate(asking(2))
            await anext(stream)
            world.beat("a", serving=None)
            await asyncio.sleep(0)  # what `notice` asked of the loop
            gate.set()
            assert [chunk.finish_reason async for chunk in stream] == ["length"]

    asyncio.run(run())


def test_silence_beyond_the_setting_is_a_loss(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path, sglang=SglangSettings(timeouts=SglangTimeoutSettings(silence_s=1.0))) as world:
            world.a.scripts.append(hangs)
            assert told(await world.ask(1)) == [("b", 10)]

    asyncio.run(run())


def test_a_request_of_low_priority_waits_for_as_long_as_others_go_first(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def is_paused(line: Line) -> web.StreamResponse:
        await line.token(7)
        await goes_on.wait()
        return await answers(line)

    async def run() -> None:
        async with fleet_of(tmp_path, sglang=SglangSettings(timeouts=SglangTimeoutSettings(silence_s=1.0))) as world:
            world.a.scripts += [is_paused, hangs]
            paused = asyncio.ensure_future(world.ask(2, priority="low", cache_key=key_of(world, "a")))
            await until(lambda: len(world.a.asked) == 1)
            assert told(await world.ask(1, cache_key=key_of(world, "a"))) == [("b", 10)], "as long a silence is a loss"
            goes_on.set()
            assert told(await paused) == [("a", 7), ("a", 10), ("a", 11)]

    asyncio.run(run())


def test_the_time_that_a_hung_engine_took_is_not_held_against_the_request(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(
            tmp_path, fleet={"engine_wait_s": 0.5}, sglang=SglangSettings(timeouts=SglangTimeoutSettings(silence_s=1.0))
        ) as world:
            world.a.scripts.append(hangs)
            assert told(await world.ask(1)) == [("b", 10)]

    asyncio.run(run())


def test_who_hangs_up_closes_the_connection(tmp_path: Path) -> None:
    async def run() -> None:
        before = figure("replica_requests_total", replica="a", outcome="hung_up")
        async with fleet_of(tmp_path) as world:
            world.a.scripts.append(hangs_after_a_token)
            stream = world.policy.generate(asking())
            await anext(stream)
            assert figure("running_requests") == 1
            await stream.aclose()
            assert figure("running_requests") == 0  # at once, not when the garbage is collected
            await asyncio.wait_for(world.a.left.wait(), PATIENCE_S)
            waiting = asyncio.ensure_future(world.ask(1))  # and before a token was heard
            world.a.left.clear()
            world.a.scripts.append(hangs)
            await until(lambda: len(world.a.asked) == 2)
            waiting.cancel()
            await asyncio.wait_for(world.a.left.wait(), PATIENCE_S)
        assert figure("replica_requests_total", replica="a", outcome="hung_up") - before == 2

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ nobody there


def test_while_nobody_is_there_a_request_waits_for_so_long(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path, fleet={"engine_wait_s": 0.2}) as world:
            for name in "ab":
                world.beat(name, state="starting", serving=None)
            assert world.policy.state == "no engine serves the live version yet"
            begun_s = time.monotonic()
            with pytest.raises(EngineUnavailable, match="no engine serves the live version yet"):
                await world.ask()
            assert time.monotonic() - begun_s >= 0.2
            world.table.clock.advance(3600)
            step(world.table.view, 0)
            with pytest.raises(EngineUnavailable, match="no engine's host is there"):
                await world.ask()

    asyncio.run(run())


def test_who_comes_meanwhile_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            for name in "ab":
                world.beat(name, serving=None)
            waiting = asyncio.ensure_future(world.ask(1))
            await asyncio.sleep(0)
            world.beat("b")
            assert told(await waiting) == [("b", 10)]
            assert world.policy.state == "ok"

    asyncio.run(run())


def test_a_version_that_nobody_has_is_refused_at_once_and_one_that_some_have_goes_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path, fleet={"engine_wait_s": 3600}) as world:
            with pytest.raises(EngineUnavailable, match="version 4"):
                await world.ask(version=NEXT)
            world.beat("b", serving=NEXT, pinnable=(NEXT,))
            assert told(await world.ask(1, version=NEXT)) == [("b", 10)]
            world.b.scripts.append(dies)
            with pytest.raises(EngineUnavailable, match="version 4"):
                await world.ask(version=NEXT)  # its only holder lost it

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ of the model


@pytest.mark.parametrize(
    ("is_moe", "dtype", "reasons"),
    [
        (True, "bfloat16", ("router_not_captured",)),
        (True, "float16", ("router_not_captured",)),
        (True, "float32", ()),
        (False, "bfloat16", ()),
    ],
)
def test_experts_that_are_not_told_make_turns_untrainable(
    tmp_path: Path, is_moe: bool, dtype: Any, reasons: tuple[str, ...]
) -> None:
    table = FleetTable(tmp_path / "store.db")
    facts = ModelFacts(vocabulary=50, context_length=40, is_moe=is_moe)
    settings = ServingSettings(sglang=SglangSettings(dtype=dtype))
    policy = FleetPolicy(table.view, SglangConnections(settings.sglang), settings, facts, table.clock)
    assert policy.untrainable(Sampling()) == reasons
    assert policy.untrainable(Sampling(temperature=0.0)) == ("temperature_zero", *reasons)
    table.store.close()


def test_the_live_version_is_the_released_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            assert world.policy.live_version == LIVE
            world.table.release(NEXT)
            step(world.table.view, 0)
            assert world.policy.live_version == NEXT
            assert figure("policy_version") == NEXT.version

    asyncio.run(run())


def test_requests_whose_grammars_are_compiled_count_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        both_came = asyncio.Barrier(2)

        async def compiles(*_: object) -> None:
            async with asyncio.timeout(PATIENCE_S):
                await both_came.wait()

        async with fleet_of(tmp_path) as world:
            monkeypatch.setattr(world.policy, "_follow", compiles)
            for server in (world.a, world.b):
                server.scripts.append(hangs_after_a_token)
            both = [world.policy.generate(asking()) for _ in range(2)]
            chunks = await asyncio.gather(*(anext(each) for each in both))
            assert {chunk.replica for chunk in chunks} == {"a", "b"}
            for each in both:
                await each.aclose()

    asyncio.run(run())


def test_low_priority_waits_where_engines_have_as_much_of_it_as_they_may(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path, fleet={"low_priority": 1, "engine_wait_s": 0.1}) as world:
            for server in (world.a, world.b):
                server.scripts.append(hangs_after_a_token)
            first, second = (world.policy.generate(asking(priority="low")) for _ in range(2))
            assert {(await anext(each)).replica for each in (first, second)} == {"a", "b"}
            third = asyncio.ensure_future(world.ask(1, priority="low"))
            assert len(told(await world.ask(3))) == 3, "others do not wait"
            await asyncio.sleep(0.2)
            assert not third.done(), "nor does it give up: engines are there"
            await second.aclose()
            assert len(told(await third)) == 1
            await first.aclose()
            priorities = [body["priority"] for server in (world.a, world.b) for body in server.asked]
            assert sorted(priorities) == [0, 0, 0, 100]

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ by name


def test_an_answer_by_name_is_of_that_version_to_its_end(tmp_path: Path) -> None:
    """What serves meanwhile is another, and the server's label is that of the model below both."""

    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            world.beat("a", names=NAMED, pinnable=(LIVE, NEXT))
            began, may_end = asyncio.Event(), asyncio.Event()

            async def speaks_slowly(line: Line) -> web.StreamResponse:
                await line.token(7, label="1")
                began.set()
                await may_end.wait()
                await line.token(8, {"type": "length"}, label="1")
                return await line.end()

            world.a.scripts.append(speaks_slowly)
            asked = asyncio.create_task(world.ask(2))
            await began.wait()
            world.beat("a", names=NAMED, pinnable=(LIVE, NEXT), serving=NEXT)
            may_end.set()
            chunks = await asked
            assert {chunk.version for chunk in chunks} == {LIVE}
            assert all(chunk.confirmed and not chunk.untrainable_reasons for chunk in chunks)
            world.a.scripts.append(speaks_upon_the_anchor)
            assert {chunk.version for chunk in await world.ask(2, version=NEXT)} == {NEXT}
            assert [body["lora_path"] for body in world.a.asked] == [NAMED[LIVE], NAMED[NEXT]]

    asyncio.run(run())


def test_a_server_without_the_name_costs_another_attempt_and_no_answer(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            world.beat("a", names=NAMED)
            world.a.scripts.append(has_no_such_adapter)
            before = retries()
            assert told(await world.ask(1)) == [("b", 10)]
            assert retries() - before == 1

    asyncio.run(run())


def test_tokens_upon_another_model_are_of_no_version(tmp_path: Path) -> None:
    """Somebody gave the server other weights, below the adapter that was asked for."""

    async def run() -> None:
        async with fleet_of(tmp_path) as world:
            world.beat("a", names=NAMED)
            world.a.scripts.append(answers)  # under the label 3
            chunks = await world.ask(1)
            assert {chunk.version for chunk in chunks} == {UNKNOWN}
            assert {reason for chunk in chunks for reason in chunk.untrainable_reasons} == {"unknown_version"}

    asyncio.run(run())
