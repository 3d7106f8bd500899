"""The agent's loop: what it does to files, what it tells the service, and how it ends."""

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest
from api_harness import Service, serve, wait_for
from sandboxed import PATIENCE_S
from scripted_policy import Script
from worked import calling, in_sandbox, saying, task_of, work

from core.errors import EngineUnavailable
from environments.errors import InfrastructureFailure
from environments.harness.agent import Agent, HarnessSettings
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.sandboxes.sandbox import Sandbox

REPAIR = ("edit", {"path": "calc/sums.py", "edits": [{"old": "one - other", "new": "one + other"}]})
CONTEXT = 60_000


@pytest.fixture(autouse=True)
def _roomy(service: Service) -> None:
    service.policy.context_length = CONTEXT  # the scripted model's tokens are bytes


def test_a_bug_is_repaired_and_every_turn_is_in_the_log(service: Service, repository: Path) -> None:
    read = ("read", {"path": "calc/sums.py"})
    scripts = [calling(read), calling(REPAIR), calling(("done", {"message": "It adds."}))]

    async def content(sandbox: Sandbox) -> bytes:
        return await sandbox.read("/workspace/calc/sums.py")

    done, after = work(service, repository, scripts, after=content)
    assert done.ending == "done"
    assert b"one + other" in after
    assert b"one - other" in (repository / "calc" / "sums.py").read_bytes()
    turns = [service.turn(inference_id) for inference_id in done.inference_ids]
    assert [turn.tool_calls[0].name for turn in turns] == ["read", "edit", "done"]
    assert {turn.session_id for turn in turns} == {done.session_id}
    assert [turn.parent_id for turn in turns] == [None, *done.inference_ids[:-1]]
    assert {turn.harness_version for turn in turns} == {f"onward-agent@{Agent().version}"}
    assert {turn.environment for turn in turns} == {"simulated"}
    assert {turn.workload for turn in turns} == {"agent"}
    assert done.policy_versions == (1, 1, 1)
    assert done.output_tokens == sum(turn.num_output_tokens for turn in turns)
    assert done.prompt_tokens + done.output_tokens == turns[-1].num_prompt_tokens + turns[-1].num_output_tokens


def test_the_times_of_calls_reach_the_log(service: Service, repository: Path) -> None:
    scripts = [calling(("read", {"path": "notes.txt"}), ("find", {"name": "*.py"})), calling(("done", {}))]
    done, _ = work(service, repository, scripts)
    service.turn(done.inference_ids[-1])
    calls = service.get(f"/v1/sessions/{done.session_id}").json()["turns"][0]["tool_calls"]
    assert all(call["started_at"] and call["started_at"] <= call["ended_at"] for call in calls)
    assert service.get(f"/v1/turns/{done.inference_ids[0]}").json()["tool_calls"] == calls


def test_what_the_endpoint_says_of_the_asker_goes_first(service: Service, repository: Path) -> None:
    service.policy.scripts.append(saying("Done."))

    async def use(sandbox: Sandbox) -> HarnessRun:
        told = {"X-Session-Id": "attempt-7", "x-onward-workload": "nightly"}
        endpoint = Endpoint(f"{service.url}/v1", model="scripted", headers=told)
        return await Agent().work(task_of(repository), sandbox, endpoint, Budget(context_tokens=CONTEXT))

    done: HarnessRun = in_sandbox(task_of(repository).spec, use)
    turn = service.turn(done.inference_ids[0])
    assert turn.session_id == done.session_id == "attempt-7"
    assert turn.workload == "nightly"


def test_an_answer_without_calls_ends_the_work(service: Service, repository: Path) -> None:
    done, _ = work(service, repository, [saying("There is nothing to do.")])
    assert (done.ending, done.calls) == ("done", ())


def test_what_cannot_be_executed_is_told_to_the_model_and_ends_it_in_the_end(
    service: Service, repository: Path
) -> None:
    wrong = [calling(("fly", {})), calling(("read", {"file": "notes.txt"})), calling(("read", {"path": 5}))]
    done, _ = work(service, repository, wrong)
    assert done.ending == "malformed"
    assert [call.succeeded for call in done.calls] == [False] * 3
    told = [
        message["content"] for message in service.turn(done.inference_ids[-1]).messages if message["role"] == "tool"
    ]
    assert "there is no tool 'fly'" in told[0]
    assert "`file`" in told[1]


@pytest.mark.parametrize(
    ("budget", "used_up"),
    [
        (Budget(calls=3, context_tokens=CONTEXT), "calls"),
        (Budget(tokens=9000, context_tokens=CONTEXT), "tokens"),
        (Budget(critical_path_seconds=0.05, context_tokens=CONTEXT), "seconds"),
    ],
)
def test_the_ending_says_what_of_the_budget_was_used_up(
    service: Service, repository: Path, budget: Budget, used_up: str
) -> None:
    look = calling(("terminal", {"command": "sleep 0.02; head -100 notes.txt"}), ("read", {"path": "calc/sums.py"}))
    done, _ = work(service, repository, [look] * 30, budget=budget)
    assert (done.ending, done.used_up) == ("budget", used_up)
    assert len(done.calls) <= budget.calls


def test_a_full_context_ends_it_where_nothing_is_to_be_summarised(service: Service, repository: Path) -> None:
    budget = Budget(context_tokens=14_000)
    done, _ = work(service, repository, [calling(("read", {"path": "notes.txt"}))] * 9, budget=budget, at_limit="stop")
    assert done.ending == "context"


def test_an_engine_that_is_gone_for_a_moment_is_asked_again_as_the_same_request(
    service: Service, repository: Path
) -> None:
    lost = Script((72, 105), fails_at=1, error=EngineUnavailable("it restarts"))
    done, _ = work(service, repository, [lost, saying("Done.")])
    assert done.ending == "done"
    assert len(done.inference_ids) == 1
    wait_for(lambda: len(service.all_turns()) == 2, "both tries")  # the failed one is logged behind the answer's back
    turns = {turn.finish_reason: turn for turn in service.all_turns()}
    assert turns["stop"].inference_id == done.inference_ids[0]
    assert turns["error"].group_id == turns["stop"].group_id


def test_a_limit_of_requests_is_waited_for(repository: Path) -> None:
    keys = [{"key": "slow-key", "namespace": "default", "requests_per_minute": 60, "burst": 1}]
    with serve(repository.parent / "limited", keys=keys) as service:
        service.policy.context_length = CONTEXT
        service.policy.scripts.extend([calling(("read", {"path": "calc/sums.py"})), saying("Done.")])

        async def use(sandbox: Sandbox) -> tuple[HarnessRun, float]:
            endpoint = Endpoint(f"{service.url}/v1", api_key="slow-key", model="scripted")
            begun = time.monotonic()
            done = await Agent().work(task_of(repository), sandbox, endpoint, Budget(context_tokens=CONTEXT))
            return done, time.monotonic() - begun

        done, seconds = in_sandbox(task_of(repository).spec, use)
    assert (done.ending, len(done.inference_ids)) == ("done", 2)
    assert seconds - done.critical_path_seconds > 0.5  # to wait is nobody's work: a second for the second request


def test_a_service_that_stays_away_is_a_failure_of_the_infrastructure(repository: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    agent = Agent(HarnessSettings(patience_seconds=0.3))

    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(InfrastructureFailure) as failure:
            await agent.work(task_of(repository), sandbox, Endpoint(f"http://127.0.0.1:{port}/v1"), Budget())
        assert failure.value.part == "service"

    in_sandbox(task_of(repository).spec, use)


def test_a_service_that_takes_the_request_and_says_nothing_is_one_that_stays_away(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.harness.model._SILENT_SECONDS", 0.1)
    agent = Agent(HarnessSettings(patience_seconds=0.2))

    async def use(sandbox: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
            with pytest.raises(InfrastructureFailure, match="service: no answer"):
                await asyncio.wait_for(agent.work(task_of(repository), sandbox, endpoint, Budget()), PATIENCE_S)

    in_sandbox(task_of(repository).spec, use)


def test_a_request_that_the_service_refuses_is_not_the_models_fault(repository: Path, service: Service) -> None:
    agent = Agent()

    async def use(sandbox: Sandbox) -> None:
        endpoint = Endpoint(f"{service.url}/v1", model="another")
        with pytest.raises(InfrastructureFailure, match="another"):
            await agent.work(task_of(repository), sandbox, endpoint, Budget())

    in_sandbox(task_of(repository).spec, use)


def test_a_sandbox_that_dies_is_a_failure_of_the_infrastructure(service: Service, repository: Path) -> None:
    service.policy.scripts.append(calling(("read", {"path": "notes.txt"}), ("find", {"name": "*"})))

    async def use(sandbox: Sandbox) -> None:
        await sandbox.close()
        endpoint = Endpoint(f"{service.url}/v1", model="scripted")
        with pytest.raises(InfrastructureFailure) as failure:
            await Agent().work(task_of(repository), sandbox, endpoint, Budget(context_tokens=CONTEXT))
        assert failure.value.part == "sandbox"

    in_sandbox(task_of(repository).spec, use)


def test_one_call_an_answer_is_demanded_of_the_service_by_its_grammar(repository: Path, service: Service) -> None:
    agent = Agent(HarnessSettings(must_call=True))
    assert agent.version != Agent().version
    assert all(tool["function"]["strict"] for tool in agent.offered)

    async def use(sandbox: Sandbox) -> None:
        endpoint = Endpoint(f"{service.url}/v1", model="scripted")
        with pytest.raises(InfrastructureFailure, match="tool_choice"):  # no grammar is known of this model's calls
            await agent.work(task_of(repository), sandbox, endpoint, Budget(context_tokens=CONTEXT))

    in_sandbox(task_of(repository).spec, use)


def test_another_prompt_or_tool_is_another_version() -> None:
    versions = {
        Agent(HarnessSettings(tools=tools)).version for tools in (None, ("read", "done"), ("read", "edit", "done"))
    }
    assert len(versions) == 3
    assert Agent().version == Agent().version
    with pytest.raises(ValueError, match="'fly'"):
        Agent(HarnessSettings(tools=("fly",)))


def test_tools_are_offered_in_a_form_that_any_service_takes() -> None:
    for tool in Agent().offered:
        assert "$ref" not in json.dumps(tool)
        assert tool["function"]["description"]
        assert tool["function"]["parameters"]["type"] == "object"
