"""An answer counts if an engine confirms that all of it is the version's; a lost answer is not an impossible one."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from byte_renderer import ByteRenderer
from case_world import Letters
from fleet_table import LIVE
from local_world import answers, request
from policy_world import World, fleet_of
from scripted_sglang import Line, dies, dies_after_a_token, is_busy, refuses

from core.errors import EngineUnavailable, InvalidRequest
from core.events import Sampling, VersionSpan
from core.ids import UNKNOWN, PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk
from serving.engines.local import LocalEngine
from serving.evals.cases import CannotRun, Case
from serving.evals.engine_answers import EngineAnswers, EngineLost, EngineTalk, NoRoom, Said

CASE = Case.model_validate(
    {"name": "case", "prompt": "!!", "checker": {"kind": "exact", "text": "yes"}, "max_tokens": 2}
)
OTHER = base_ref(9)


def chunk(text: str, version: PolicyRef = LIVE, **fields: Any) -> TokenChunk:
    return TokenChunk(token_ids=tuple(map(ord, text)), logprobs=(-1.0,) * len(text), version=version, **fields)


class Says:
    context_length = 100

    def __init__(self, *chunks: TokenChunk | Exception) -> None:
        self._chunks = chunks

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        assert (request.version, request.is_case) == (LIVE, True)
        for each in self._chunks:
            if isinstance(each, Exception):
                raise each
            yield each


def ask(*chunks: TokenChunk | Exception) -> str:
    return asyncio.run(EngineAnswers(Says(*chunks), Letters(), LIVE)(CASE))  # type: ignore[arg-type]


def spans(*versions: PolicyRef) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(start=n, end=n + 1, version=version) for n, version in enumerate(versions))


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("y"), chunk("es", finish_reason="stop")],
        [chunk("yes"), chunk("", UNKNOWN, finish_reason="stop")],
        [chunk("y"), chunk("es", OTHER, confirmed=False, finish_reason="stop", version_spans=spans(LIVE, LIVE))],
    ],
    ids=["said so", "an end without a token", "said at the end"],
)
def test_what_is_all_of_the_version_counts(chunks: Sequence[TokenChunk]) -> None:
    assert ask(*chunks) == "yes"


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("y"), chunk("es", OTHER, finish_reason="stop")],
        [chunk("y", confirmed=False), chunk("es", confirmed=False, finish_reason="stop")],
        [chunk("y"), chunk("es", finish_reason="stop", version_spans=spans(LIVE, OTHER))],
        [chunk("y"), chunk("es", UNKNOWN, finish_reason="stop")],
        [chunk("y"), chunk("", finish_reason="abort")],
        [chunk("y"), EngineUnavailable("gone")],
        [EngineUnavailable("no engine serves version 3")],
    ],
    ids=["turned", "nobody vouches", "turned, it is said at the end", "unknown", "broken off", "dies", "away"],
)
def test_what_is_not_is_lost_and_may_be_asked_again(chunks: Sequence[TokenChunk | Exception]) -> None:
    with pytest.raises(EngineLost):
        ask(*chunks)


def test_what_the_model_cannot_do_is_not_asked_again() -> None:
    with pytest.raises(CannotRun, match="too long") as raised:
        ask(InvalidRequest("too long"))
    assert not isinstance(raised.value, EngineLost)


def test_a_conversation_says_what_a_model_has_no_room_for_and_what_it_cannot_be_shown() -> None:
    asked, tools = [{"role": "user", "content": "!!"}], [{"type": "function"}]

    def say(most: int, refused: str | None = None) -> Said:
        talk = EngineTalk(Says(chunk("yes", finish_reason="stop")), ByteRenderer(refused), LIVE)  # type: ignore[arg-type]
        return asyncio.run(talk.say(asked, tools, Sampling(max_tokens=most)))

    said = say(20)
    assert (said.text, said.output_tokens) == ("yes", 3)
    with pytest.raises(NoRoom, match=rf"^{said.prompt_tokens} tokens and an answer of 90 exceed the model's context"):
        say(90)
    with pytest.raises(CannotRun, match="the model cannot be shown tools: its template has no place"):
        say(20, "its template has no place")


def test_the_time_that_a_turn_waits_behind_others_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Busy:
        context_length = 100

        async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
            now[0] += 500
            yield chunk("ye")
            now[0] += 2
            yield chunk("s", finish_reason="stop")

    monkeypatch.setattr("serving.evals.engine_answers.time", SimpleNamespace(monotonic=lambda: now[0]))
    talk = EngineTalk(Busy(), ByteRenderer(), LIVE)  # type: ignore[arg-type]
    said = asyncio.run(talk.say([{"role": "user", "content": "!!"}], (), Sampling(max_tokens=20)))
    assert (said.text, said.seconds) == ("yes", 2)


# ------------------------------------------------------------------------------------------------ of a fleet


async def turns(line: Line) -> web.StreamResponse:
    await line.token(ord("y"), label=str(LIVE))
    await line.token(ord("e"), {"type": "length"}, label=str(OTHER))
    return await line.end()


async def speaks(line: Line) -> web.StreamResponse:
    await line.token(ord("y"))
    await line.token(ord("o"), {"type": "length"})
    return await line.end()


def ask_fleet(tmp_path: Path, prepare: Callable[[World], None]) -> str:
    """Ask two servers, of which only `b` serves the version, to no users."""

    async def run() -> str:
        async with fleet_of(tmp_path) as world:
            world.beat("a", serving=OTHER, pinnable=(OTHER,))
            world.table.want("b", "canary", LIVE)
            world.beat("b")
            prepare(world)
            try:
                return await EngineAnswers(world.policy, Letters(), LIVE)(CASE)  # type: ignore[arg-type]
            finally:
                assert world.a.asked == []

    return asyncio.run(run())


def test_a_fleet_asks_the_engine_that_has_the_version(tmp_path: Path) -> None:
    assert ask_fleet(tmp_path, lambda world: world.b.scripts.append(speaks)) == "yo"


@pytest.mark.parametrize("loses", [dies, dies_after_a_token, is_busy, turns])
def test_what_an_engine_of_a_fleet_loses_is_lost(tmp_path: Path, loses: Any) -> None:
    with pytest.raises(EngineLost):
        ask_fleet(tmp_path, lambda world: world.b.scripts.append(loses))


def test_what_an_engine_of_a_fleet_refuses_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(CannotRun) as raised:
        ask_fleet(tmp_path, lambda world: world.b.scripts.append(refuses))
    assert not isinstance(raised.value, EngineLost)


# ------------------------------------------------------------------------------------------------ embedded


def test_a_case_is_no_users_first_token(make_engine: Callable[..., LocalEngine]) -> None:
    engine, heard = make_engine(), []
    engine.on_first_token = lambda version, _: heard.append(version.version)

    class Numbers(Letters):
        def feed(self, token_ids: Sequence[int]) -> Any:
            return super().feed([ord("a")] * len(token_ids))

    assert asyncio.run(EngineAnswers(engine, Numbers(), base_ref(1))(CASE)) == "aa"  # type: ignore[arg-type]
    assert heard == []
    answers(engine, request([1, 2], max_tokens=1, version=1))
    assert heard == [1], "a user's is"
