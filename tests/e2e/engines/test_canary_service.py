"""Canaries on two real SGLang servers, with versions of planted worth.

Each is asked the eval cases first, then judged by simulated users, and decided without an operator."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from publisher import Publisher
from service_tree import Service, user, wait_for
from sglang_service import sglang_service

USERS = 80
AT_A_TIME = 16
LIVE = 0.5  # the share of answers that is accepted
VERDICT_TIMEOUT_S = 600
SETTINGS = {
    "serving.sglang.replicas": 2,
    "release.canary.share": 0.4,
    "release.canary.maturity_s": 1.0,
    "release.canary.horizon_turns": 500,
    "release.canary.slower_times": 100.0,  # two engines and the tests share two cores: the busier one is slower
}
CASES = 40
CASE = """
[[case]]
name = "{n}"
prompt = "[web] write total(xs): sum of xs, case {n}"
max_tokens = 6
checker = {{ kind = "contains", none = ["no answer has this"] }}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    suite = tmp_path_factory.mktemp("suite")
    (suite / "cases.toml").write_text("".join(CASE.format(n=n) for n in range(CASES)))
    with sglang_service(tmp_path_factory.mktemp("canary"), SETTINGS | {"release.evals.suite": str(suite)}) as made:
        yield made


@pytest.fixture(scope="module")
def publisher(service: Service) -> Iterator[Publisher]:
    with Publisher(service.directory) as made:
        yield made


async def live_and_judge(service: Service, worth: Callable[[int], float], until: Callable[[], Any]) -> None:
    """Let users ask, and accept or reject each answer with the probability that its version is worth."""
    over = asyncio.Event()

    async def ask_as_anybody(http: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(number)
        while not over.is_set():
            who = chance.randrange(USERS)
            question = {
                "model": "onward-tiny",
                "messages": [user(f"[web] write f{who}(xs): sum of xs")],
                "max_tokens": 6,
            }
            async with http.post("/v1/chat/completions", json={**question, "user": f"user-{who}"}) as response:
                assert response.status == 200, await response.text()
                onward = (await response.json())["onward"]
            name = "accepted" if chance.random() < worth(onward["policy_version"]) else "rejected"
            outcome = {"inference_id": onward["inference_id"], "metric_name": name, "value": True}
            async with http.post("/v1/feedback", json=outcome) as response:
                assert response.status == 200, await response.text()

    async def watch() -> None:
        await asyncio.to_thread(wait_for, until, VERDICT_TIMEOUT_S, "a verdict")
        over.set()

    async with aiohttp.ClientSession(service.url) as http, asyncio.TaskGroup() as group:
        for number in range(AT_A_TIME):
            group.create_task(ask_as_anybody(http, number))
        group.create_task(watch())


@pytest.mark.parametrize(("effect", "end"), [(-0.3, "rolled_back"), (0.3, "live")], ids=["worse", "better"])
@pytest.mark.timeout(900)
def test_a_canary_is_decided_by_what_its_users_do(
    service: Service, publisher: Publisher, effect: float, end: str
) -> None:
    live = int(service.get("/v1/policies")["live"])
    canary = publisher.publish(scale=1e-5)

    def state() -> str:
        return str({each["version"]: each["state"] for each in service.get("/v1/policies")["data"]}[canary])

    worth = {live: LIVE, canary: LIVE + effect}
    asyncio.run(live_and_judge(service, lambda version: worth.get(version, LIVE), lambda: state() == end))
    verdict = next(each["verdict"] for each in service.get("/v1/policies")["data"] if each["version"] == canary)
    assert (verdict["action"], verdict["against"], verdict["proposed"]) == ("pass", live, False)
    assert verdict["figures"]["cases_cases"] == CASES
    experiment = service.get("/v1/experiments")["data"][0]
    assert experiment["canary"] == canary
    assert experiment["verdict"] == ("promote" if end == "live" else "rollback")
    assert "reward" in experiment["why"]
    assert experiment["figures"]["turns"] > 0
    wait_for(lambda: service.get("/v1/policies")["live"] == (canary if end == "live" else live))
    wait_for(lambda: served(service) == {service.get("/v1/policies")["live"]}, what="both engines on what is live")


def served(service: Service) -> set[int]:
    return {replica["serving"] for replica in service.get("/v1/fleet")["data"]}
