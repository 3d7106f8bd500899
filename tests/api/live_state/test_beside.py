"""Live state of a process beside the first one, while that is away and once it is back."""

import asyncio
from pathlib import Path

from live_states import ACME, WAIT_S, bucket, chain, until

from api.access.quotas.limits import TURNS
from api.live_state.beside.answers import answer_for
from api.live_state.beside.live_state import BesideLiveState
from api.live_state.memory import MemoryLiveState
from core.beside.line import Line
from core.beside.listener import Listener
from core.ids import InferenceId, SessionId
from core.ports import CountWindow


async def use_alone(state: BesideLiveState) -> None:
    await state.put_chain(ACME, ["a"], chain(1))
    await state.put_inference(ACME, InferenceId("i2"), SessionId("s2"))
    assert await state.get_chain(ACME, ["x", "a"]) == chain(1)
    assert await state.get_session(ACME, InferenceId("i2")) == "s2"
    assert await state.has_session(ACME, SessionId("s1"))
    assert await state.claim(ACME, "k", "a") is None, "who else claimed it is not known"
    assert await state.claim(ACME, "k", "b") == "a"
    assert await state.claim_of(ACME, "k") == "a"
    narrow = bucket(burst=1)
    assert [(await state.take([narrow]))[0].wait_s > 0 for _ in range(2)] == [False, True]
    assert [await state.spend([CountWindow(name="w", add=2)], 60) for _ in range(2)] == [[0], [2]]
    state.count(ACME, TURNS)
    found = await state.counts(ACME)
    assert (dict(found.counts), found.complete) == ({TURNS: 1}, False)
    with state.changes("c") as changes:
        state.announce("c")
        assert await changes.wait(WAIT_S)


def test_it_is_there_alone_and_tells_what_only_it_knows(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, first, listener = tmp_path / "line.sock", MemoryLiveState(), Listener()
        answer_for(listener, first)
        line = Line(path)
        async with BesideLiveState(line) as state:
            assert "is away" in state.state
            await use_alone(state)
            with state.changes("c") as changes:
                async with listener.listening(path):
                    assert await changes.wait(WAIT_S), "something may have been announced meanwhile"

                    async def is_known() -> bool:
                        return await first.get_session(ACME, InferenceId("i2")) is not None

                    await until(is_known)
                    assert state.state == "ok"
                    assert await first.get_session(ACME, InferenceId("i1")) == "s1"
                    found = await state.counts(ACME)
                    assert (dict(found.counts), found.complete) == ({TURNS: 1}, True)
                    assert dict((await first.counts(ACME)).counts) == {TURNS: 1}, "counted once"
                    assert await state.claim(ACME, "k", "b") == "a", "what it holds it keeps"
                    await asyncio.wait_for(state.settle(), WAIT_S)
            await line.aclose()

    asyncio.run(scenario())
