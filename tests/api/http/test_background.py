"""What clients make long runs on one thread at a time, whoever still waits for it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from api.http import background


def test_one_runs_at_a_time_also_where_its_client_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[list[str], bool]:
        seen, gates = list[str](), {name: asyncio.Event() for name in "abc"}

        async def on_thread(work: Callable[[], str]) -> str:
            seen.append(f"{work()} begins")
            await gates[work()].wait()
            seen.append(f"{work()} ends")
            return work()

        async def others() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        monkeypatch.setattr(background.asyncio, "to_thread", on_thread)
        aside = background.Aside()
        first, second, third = (asyncio.create_task(aside.run(name, lambda name=name: name)) for name in "abc")
        await others()
        first.cancel()
        await others()
        for gate in gates.values():
            gate.set()
            await others()
        answers: list[Any] = await asyncio.gather(first, second, third, return_exceptions=True)
        return seen, answers[1:] == ["b", "c"] and first.cancelled()

    seen, is_answered = asyncio.run(run())
    assert seen == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert is_answered


def test_who_brings_many_pieces_of_work_keeps_others_waiting_for_one() -> None:
    async def run() -> list[str]:
        aside, seen = background.Aside(), list[str]()
        many = [aside.run("she", lambda number=number: seen.append(f"hers {number}")) for number in range(5)]
        await asyncio.gather(*many, aside.run("he", lambda: seen.append("his")))
        return seen

    seen = asyncio.run(run())
    assert seen.index("his") == 1
    assert [each for each in seen if each != "his"] == [f"hers {number}" for number in range(5)], "in their order"


def test_those_who_wait_for_the_same_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many strangers ask, the operator waits for the page that is being made, and for one of theirs."""

    async def run() -> tuple[list[str], list[str]]:
        made, gate = list[str](), asyncio.Event()

        async def on_thread(work: Callable[[], str]) -> str:
            await gate.wait()
            made.append(work())
            return f"{made[-1]} {len(made)}"

        monkeypatch.setattr(background.asyncio, "to_thread", on_thread)
        shared = background.Shared()

        def ask(kind: str, times: int) -> list[asyncio.Task[str]]:
            return [asyncio.create_task(shared.run(kind, lambda: kind)) for _ in range(times)]

        asked = ask("stranger", 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its page is being made
        asked += [*ask("stranger", 500), *ask("operator", 2), *ask("stranger", 500)]
        await asyncio.sleep(0)
        asked.pop(1).cancel()  # the first that waits goes: the others get their page all the same
        await asyncio.sleep(0)
        gate.set()
        answers = await asyncio.gather(*asked)
        return made, [answers[0], *sorted(set(answers[1:])), await shared.run("stranger", lambda: "stranger")]

    made, answers = asyncio.run(run())
    assert made == ["stranger", "stranger", "operator", "stranger"]
    assert answers == ["stranger 1", "operator 3", "stranger 2", "stranger 4"], "none is of before it was asked for"


def test_an_error_is_everybodys_who_waits_for_it() -> None:
    async def run() -> list[Any]:
        shared = background.Shared()

        def fail() -> str:
            raise ValueError("no page")

        failed = await asyncio.gather(*(shared.run("it", fail) for _ in range(3)), return_exceptions=True)
        return [*map(repr, failed), await shared.run("it", lambda: "a page")]

    assert asyncio.run(run()) == ["ValueError('no page')"] * 3 + ["a page"]


def test_one_caller_has_half_of_the_threads() -> None:
    """What there is to read is as much as its user said; also where she hangs up, and looks again."""
    gate = threading.Event()

    async def run() -> tuple[bool, int]:
        begun = list[int]()

        def hers(number: int) -> None:
            begun.append(number)
            gate.wait()

        async def look(number: int) -> None:
            background.called_by("she")
            await background.on_a_thread(lambda: hers(number))

        async def his() -> bool:
            background.called_by("he")
            return await background.on_a_thread(lambda: not gate.is_set())

        try:
            for number in range(3 * background._THREADS):
                task = asyncio.create_task(look(number))
                await asyncio.sleep(0)
                if number % 2:
                    task.cancel()
                held.append(task)
            is_first = await asyncio.wait_for(his(), 20)
            return is_first, len(begun)
        finally:
            gate.set()
            await asyncio.gather(*held, return_exceptions=True)

    held = list[asyncio.Task[None]]()
    is_first, begun = asyncio.run(run())
    assert is_first, "he need not wait for her"
    assert begun <= background._THREADS // 2
