"""A fleet whose engines answer by version, reached as a router reaches them.

It comes with a suite, and with users who must not be served an unfit version."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from release_world import ReleaseWorld

from core.errors import EngineUnavailable
from core.events import Sampling
from core.ids import base_ref
from core.ports import GenerateRequest, OutputDelta, Policy, TokenChunk
from core.settings import EvalSettings
from serving.evals.cases import Case, Suite
from serving.fleet.router import choose
from serving.fleet.view import FleetView
from serving.releases.cases import CaseGate

ENOUGH = 40  # cases


class Letters:
    """A renderer whose tokens are characters."""

    name, tokenizer_digest, stop_token_ids = "letters", "", ()
    tools_refused = late_system_refused = None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1]["content"]))

    def parser(self, *, tools: Sequence[Any] | None = None, after: Sequence[int] = ()) -> "Letters":
        return self

    def feed(self, token_ids: Sequence[int]) -> OutputDelta:
        return OutputDelta(content="".join(map(chr, token_ids)))

    def finish(self) -> OutputDelta:
        return OutputDelta()


class Fleet:
    """An implementation of core.ports.Policy over the world's engines.

    The engine with the version answers letter by letter, labelled by what it serves at that moment."""

    context_length = 1000
    live_version = base_ref(1)

    def __init__(self, world: ReleaseWorld) -> None:
        self.world = world
        self.wrong: dict[int, int] = {}  # by version: how many cases it gets wrong, from the first
        self.asked: list[tuple[str, int, str]] = []  # engine, version and case
        self.on_ask: Callable[[int], None] = lambda _: None  # called with how many were asked

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        return ()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        assert request.version is not None
        assert request.is_case
        view = FleetView(self.world.store, "local", self.world.clock, self.world.serving.fleet.heartbeat_timeout_s)
        able = choose(view.snapshot, request.version, None, {})
        if not able:
            raise EngineUnavailable(f"no engine serves version {request.version}")
        engine, case = self.world.engines[able[0].name], "".join(map(chr, request.prompt_token_ids))
        self.asked.append((engine.name, request.version.version, case))
        self.on_ask(len(self.asked))
        text = "no" if int(case) < self.wrong.get(request.version.version, 0) else "yes"
        for place, letter in enumerate(text):
            await asyncio.sleep(0)
            spoke = request.version if engine.holds_many else engine.serving()
            if spoke is None:
                raise EngineUnavailable(f"{engine.name} is away")
            finish = "length" if place == len(text) - 1 else None
            yield TokenChunk(token_ids=(ord(letter),), logprobs=(-1.0,), version=spoke, finish_reason=finish)  # type: ignore[arg-type]

    def open(self) -> AbstractAsyncContextManager[Policy]:
        return nullcontext[Policy](self)

    def engines_asked(self, version: int) -> set[str]:
        return {engine for engine, asked, _ in self.asked if asked == version}


def suite_of(cases: int, too_long: int = -1) -> Suite:
    """`too_long`: the case that no version has room to answer."""
    checker, prompts = {"kind": "exact", "text": "yes"}, [str(n) for n in range(cases)]
    if too_long >= 0:
        prompts[too_long] = prompts[too_long].zfill(2 * Fleet.context_length)
    made = tuple(
        Case.model_validate({"name": str(n), "prompt": prompt, "checker": checker}) for n, prompt in enumerate(prompts)
    )
    return Suite(made, {case.name: Path("/nowhere") for case in made}, "digest")


def give_cases(world: ReleaseWorld, cases: int = ENOUGH, *, too_long: int = -1, **settings: Any) -> Fleet:
    """Restart the controller with these cases for its candidates, and check the users at each round."""
    fleet = Fleet(world)
    evals = EvalSettings(**{"budget_s": 20.0, **settings})
    suite = suite_of(cases, too_long)
    world.make_cases = lambda: CaseGate(suite, fleet.open, Letters(), evals, world.clock)  # type: ignore[arg-type]
    for process in world.processes:
        process.controller.close()
        process.kill()
    world.processes = []
    world.start_controller("with cases")
    whole = world.round

    def looked_at() -> bool:
        moved = whole()
        check_users(world)
        return moved

    world.round = looked_at  # type: ignore[method-assign]
    world.run()
    return fleet


def check_users(world: ReleaseWorld) -> None:
    """Assert that users are served only versions that were live or passed their cases."""
    view = FleetView(world.store, "local", world.clock, world.serving.fleet.heartbeat_timeout_s)
    states = world.states()
    for replica in choose(view.snapshot, None, None, {}):
        serving = world.engines[replica.name].serves
        is_fit = serving is None or states[serving] != "candidate" or (judged(world, serving) or ("",))[0] == "pass"
        assert is_fit, (replica, states)


def judged(world: ReleaseWorld, version: int) -> tuple[str, str] | None:
    """Return (action, why) of the stored verdict."""
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    return None if policy.verdict is None else (policy.verdict.action, policy.verdict.why)
