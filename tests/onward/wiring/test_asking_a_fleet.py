"""The release controller sends eval cases to a fleet's engines, and says why where its settings prevent it."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from scripted_sglang import ScriptedSglang
from task_folders import write_task

from core.errors import ConfigError
from core.events import Release
from core.ids import UNKNOWN, PolicyRef, base_ref
from core.operations.fleet import ReplicaStatus
from environments.errors import InfrastructureFailure
from onward.wiring.engines import ask_fleet
from onward.wiring.foundation import Foundation, open_foundation
from onward.wiring.releases import build_releases
from serving.evals.cases import Case
from serving.evals.engine_answers import EngineAnswers, EngineLost
from serving.rendering import load_renderer

ONE, TWO = base_ref(1), base_ref(2)
# No host says again that it is there: what was said once has to hold for as long as a test may take.
SGLANG = {"ONWARD_SERVING__ENGINE": "sglang", "ONWARD_SERVING__FLEET__HEARTBEAT_TIMEOUT_S": "600"}
CASE = Case.model_validate({"name": "case", "prompt": "?", "checker": {"kind": "exact", "text": ""}, "max_tokens": 2})


def say(foundation: Foundation, url: str, name: str = "a", version: PolicyRef = ONE) -> None:
    """Report a ready engine that serves the version, which is live."""
    now, cluster = foundation.clock.now(), foundation.settings.serving.cluster
    with foundation.store.work() as work:
        work.policies.allocate_anchor(now)
        work.releases.put(Release(version=version, cluster=cluster, state="live", why="", by="gate", at=now))
        status = ReplicaStatus(
            name=name, cluster=cluster, url=url, state="ready", serving=version, pinnable=(version,), heartbeat_at=now
        )
        work.fleet.put_status(status)


def test_engines_are_found_in_the_store_while_they_come(tmp_path: Path) -> None:
    async def run(foundation: Foundation) -> str:
        server = ScriptedSglang()
        await server.start()
        try:
            async with ask_fleet(foundation) as policy, asyncio.timeout(120):
                spoken = EngineAnswers(policy, load_renderer(foundation.model), ONE)
                with pytest.raises(EngineLost, match="no engine serves version 1"):
                    await spoken(CASE)
                say(foundation, server.url)
                server.scripts += [_speaks] * 100
                while True:
                    try:
                        return await spoken(CASE)
                    except EngineLost:
                        await asyncio.sleep(0.02)
        finally:
            await server.close()

    async def _speaks(line: object) -> object:
        await line.token(70, label="1")  # type: ignore[attr-defined]
        await line.token(71, {"type": "length"}, label="1")  # type: ignore[attr-defined]
        return await line.end()  # type: ignore[attr-defined]

    with closing(open_foundation(tmp_path, SGLANG)) as foundation:
        expected = load_renderer(foundation.model).parser(tools=())
        text = expected.feed((70, 71)).content + expected.finish().content
        assert asyncio.run(run(foundation)) == text != ""


def test_two_names_on_one_store_do_not_see_one_anothers_live_version(tmp_path: Path) -> None:
    async def seen(foundation: Foundation) -> tuple[PolicyRef, str]:
        async with ask_fleet(foundation) as policy:
            return policy.live_version, policy.state  # type: ignore[attr-defined]

    def of(name: str) -> Foundation:
        return open_foundation(tmp_path, {**SGLANG, "ONWARD_SERVING__CLUSTER": name})

    with closing(of("east")) as east, closing(of("west")) as west, closing(of("north")) as north:
        with east.store.work() as work:
            while work.policies.allocate(east.clock.now()) < TWO:
                pass
        say(east, "http://east", "a", TWO)
        say(west, "http://west", "b", ONE)
        assert asyncio.run(seen(east)) == (TWO, "ok")
        assert asyncio.run(seen(west)) == (ONE, "ok")
        assert asyncio.run(seen(north)) == (UNKNOWN, "no engine's host is there")


def suite(directory: Path) -> Path:
    directory.mkdir()
    (directory / "cases.toml").write_text(
        '[[case]]\nname = "a"\nprompt = "?"\nchecker = { kind = "exact", text = "b" }\n'
    )
    return directory


def empty(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.parametrize(
    ("make", "engine", "said"),
    [(suite, "local", r"release\.evals\.suite: with serving.engine local"), (empty, "sglang", "no case files")],
)
def test_a_controller_that_cannot_ask_says_why(
    tmp_path: Path, make: Callable[[Path], Path], engine: str, said: str
) -> None:
    overrides = {"ONWARD_RELEASE__EVALS__SUITE": str(make(tmp_path / "suite")), "ONWARD_SERVING__ENGINE": engine}
    with (
        closing(open_foundation(tmp_path / "service", overrides)) as foundation,
        pytest.raises(ConfigError, match=said),
    ):
        build_releases(foundation, foundation.log, None)


def test_a_controller_alone_asks_a_fleet(tmp_path: Path) -> None:
    overrides = {**SGLANG, "ONWARD_RELEASE__EVALS__SUITE": str(suite(tmp_path / "suite"))}
    with closing(open_foundation(tmp_path / "service", overrides)) as foundation:
        releases = build_releases(foundation, foundation.log, None)
        with closing(releases):
            assert releases._cases is not None


def test_a_suite_of_tasks_is_refused_where_no_sandbox_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = suite(tmp_path / "suite")
    write_task(cases / "task")
    (cases / "cases.toml").write_text('[[case]]\nname = "a"\ntask = "task"\n')

    async def fails(kept: Path) -> None:
        raise InfrastructureFailure("sandbox", "bwrap is not here")

    monkeypatch.setattr("onward.wiring.evals.task_cases.require_sandboxes", fails)
    overrides = {**SGLANG, "ONWARD_RELEASE__EVALS__SUITE": str(cases), "ONWARD_RELEASE__EVALS__ALLOW_COMMANDS": "true"}
    with (
        closing(open_foundation(tmp_path / "service", overrides)) as foundation,
        pytest.raises(ConfigError, match=r"the suite has tasks \('a'\), and no sandbox opens here: sandbox: bwrap"),
    ):
        build_releases(foundation, foundation.log, None)
    wanted = {
        '[environment]\nnetwork_mode = "public"\n': "it wants a network",
        '[verifier.environment]\nnetwork_mode = "public"\n': "it wants a network",
        '[verifier.env]\nKEY = "${KEY}"\n': r"verifier\.env\.KEY: the variable KEY is not lent",
    }
    for wants, said in wanted.items():
        write_task(cases / "task", wants)
        with (
            closing(open_foundation(tmp_path / "service", overrides)) as foundation,
            pytest.raises(ConfigError, match=rf"case 'a': task: .*{said}.* \(tasks of eval cases are lent nothing\)"),
        ):
            build_releases(foundation, foundation.log, None)
