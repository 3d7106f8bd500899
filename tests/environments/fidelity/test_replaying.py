"""Logged calls executed again: a session of a real service, replayed in a real sandbox, and planted differences."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from api_harness import MODEL, Service, serve
from sandboxed import require_bubblewrap
from worked import calling, in_sandbox, task_of

from environments.errors import InfrastructureFailure
from environments.fidelity.__main__ import app
from environments.fidelity.places import Chosen, Places, replay_all
from environments.fidelity.recorded import Recordings
from environments.fidelity.replaying import Compared
from environments.fidelity.report import as_json, by_tool, differing
from environments.harness.agent import Agent, HarnessSettings
from environments.harness.harness import Budget, Endpoint
from environments.sandboxes.sandbox import Sandbox

CALC = "def add(one, other):\n    return one - other\n"
REPAIR = {"path": "calc.py", "edits": [{"old": "one - other", "new": "one + other"}]}
SCRIPTS = (
    calling(("read", {"path": "calc.py"}), ("grep", {"pattern": "return"})),
    calling(("edit", REPAIR)),
    calling(("read", {"path": "calc.py"}), ("fly", {"to": "the moon"})),
    calling(("terminal", {"command": "date +%s%N; ls"})),
    calling(("done", {"message": "It adds."})),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "calc.py").write_text(CALC)
    return root


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    require_bubblewrap()
    with serve(tmp_path / "service") as service:
        service.policy.context_length = 60_000
        yield service


def live(service: Service, repository: Path, **headers: str) -> str:
    """Let an agent work as in production; return its session."""
    service.policy.scripts.extend(SCRIPTS)
    sent = {"x-onward-environment": "production"} | {name.replace("_", "-"): value for name, value in headers.items()}
    endpoint, task = Endpoint(f"{service.url}/v1", model=MODEL, headers=sent), task_of(repository)
    agent = Agent(HarnessSettings(answer_tokens=200, patience_seconds=5))

    async def use(sandbox: Sandbox) -> str:
        work = await agent.work(task, sandbox, endpoint, Budget(context_tokens=60_000))
        assert work.ending == "done"
        assert work.session_id is not None
        return work.session_id

    session_id: str = in_sandbox(task.spec, use)
    for turn in service.policy.requests[-len(SCRIPTS) :]:
        service.turn(turn.inference_id)
    return session_id


def replayed(service: Service, repository: Path) -> tuple[list[Compared], dict[str, int]]:
    places = Places(repository, (), repository.parent / "replays")
    compared, left_out, _versions = asyncio.run(replay_all(Endpoint(f"{service.url}/v1"), Chosen(), places))
    return compared, dict(left_out)


def likeness(compared: list[Compared]) -> list[tuple[str, str]]:
    return [(each.tool, each.likeness) for each in compared]


def test_the_same_tools_in_the_same_repository_answer_alike(service: Service, repository: Path) -> None:
    """What a command says of chance keeps its shape; a tool that there is not is told apart from one that differs."""
    live(service, repository)
    compared, left_out = replayed(service, repository)
    assert likeness(compared) == [
        ("read", "equal"),
        ("grep", "equal"),
        ("edit", "equal"),
        ("read", "equal"),
        ("fly", "no_tool"),
        ("terminal", "same_shape"),
        ("done", "not_recorded"),
    ]
    assert left_out == {}
    tools = {each.tool: each for each in by_tool(compared)}
    assert (tools["read"].calls, tools["read"].equal, tools["read"].same_shape) == (2, 1.0, 1.0)
    assert (tools["terminal"].equal, tools["terminal"].same_shape) == (0.0, 1.0)
    ratio = tools["read"].latency_ratio
    assert ratio is not None
    assert ratio > 0
    assert b"one - other" in (repository / "calc.py").read_bytes(), "the repository itself is as it was"


def test_other_content_and_another_format_are_told_apart(service: Service, repository: Path) -> None:
    live(service, repository)
    (repository / "calc.py").write_text(CALC.replace("add", "plus"))
    compared, _ = replayed(service, repository)
    assert likeness(compared)[0] == ("read", "same_shape")
    (repository / "calc.py").unlink()
    compared, _ = replayed(service, repository)
    assert likeness(compared)[0] == ("read", "other_shape")
    told = as_json(compared, {}, {})
    assert told["other_shape"][0]["recorded_digest"] != told["other_shape"][0]["digest"]
    assert any(line.startswith("read: recorded") for line in differing(compared))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"x_onward_learn": "false"}, "no consent"),
        ({"x_onward_store": "false"}, "not stored"),
        ({"x_onward_environment": "simulated"}, "simulated"),
    ],
)
def test_sessions_that_are_not_to_be_used_are_counted(
    service: Service, repository: Path, headers: dict[str, str], why: str
) -> None:
    live(service, repository, **headers)
    assert replayed(service, repository) == ([], {why: 1})


def test_the_command_prints_a_table_and_writes_all_of_it(
    service: Service, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session_id = live(service, repository)
    out, given = tmp_path / "report.json", ["--workspace", str(repository), "--folder", str(tmp_path / "kept")]
    with pytest.raises(SystemExit) as ended:
        app([f"{service.url}/v1", *given, "--session", session_id, "--out", str(out)])
    assert ended.value.code == 0, capsys.readouterr()
    told = json.loads(out.read_text())
    assert (told["sessions"], told["left_out"]) == (1, {})
    assert [tool["tool"] for tool in told["tools"]] == ["done", "edit", "fly", "grep", "read", "terminal"]
    assert "same shape" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        app([f"{service.url}/v1", *given, "--session", "nobody"])
    assert refused.value.code == 1


def test_a_service_that_is_away_is_said(repository: Path) -> None:
    places = Places(repository, (), repository.parent / "replays")
    with pytest.raises(InfrastructureFailure, match="service: /sessions"):
        asyncio.run(replay_all(Endpoint("http://127.0.0.1:9/v1"), Chosen(), places))


@pytest.mark.parametrize("said", ['{"detail": "no such place"}', "[]", "<h1>Bad gateway</h1>"])
def test_a_refusal_in_anothers_form_is_told_as_it_came(said: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=502, text=said)

    async def test() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", refuse)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession() as http:
                recordings = Recordings(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/v1"), http)
                with pytest.raises(InfrastructureFailure, match=re.escape(f"502: {said}")):
                    await recordings.session("s")
        finally:
            await runner.cleanup()

    asyncio.run(test())
