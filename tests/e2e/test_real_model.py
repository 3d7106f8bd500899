"""The loop's promises with SmolLM2, a model that somebody else trained, which learns by adapters.

Its users accept short answers. What they are told is exact, a canary decides, a rollback holds, and the updates are
repeated to the bit."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from pretrained import smollm2
from rescoring import all_turns, worst_difference_of
from service_tree import Service, wait_for

from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(2400)  # a real model learns, on whatever machine
USERS = 6
TOLERANCE = 1e-4
SETTINGS = {
    "serving.context_length": 256,
    "serving.local.slots": USERS,
    "learner.lora.rank": 4,
    "learner.lora.alpha": 8,
    "learner.optimizer.learning_rate": 1e-3,
    "learner.batch.turns": 2 * USERS,
    "learner.batch.min_turns": USERS,
    "release.canary.enabled": "on",
    "release.canary.share": 0.5,
    "release.canary.maturity_s": 0,
    "release.canary.horizon_turns": 4,
    "release.gate.max_kl": 10.0,
    "release.gate.usual_kl_times": 1e6,
}
ASKED = ("Name a colour.", "Say hello.", "What is 2 + 2?", "Name an animal.", "Name a city.", "Is water wet?")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("real") / "service"
    directory.mkdir()
    made = Service(directory, SETTINGS | {"serving.model": str(smollm2())})
    try:
        yield made.start()
    finally:
        made.stop()


NUMBERS = count()
"""Of users: each asks once, for of six alone all may happen to be in one arm of a canary, which then never ends."""


def ask(service: Service, who: int) -> dict[str, Any]:
    user = f"user-{next(NUMBERS)}"
    return service.chat(ASKED[who], max_tokens=8, temperature=0.8, user=user)  # type: ignore[no-any-return]


def live_a_while(service: Service, until: Callable[[], Any]) -> None:
    """Let users ask and judge, all at once, until something is true."""

    def turn(who: int) -> None:
        answer = ask(service, who)
        name = "accepted" if len(answer["choices"][0]["message"]["content"]) < 25 else "rejected"
        judged = {"inference_id": answer["onward"]["inference_id"], "metric_name": name, "value": True}
        service.post("/v1/feedback", judged)

    with ThreadPoolExecutor(USERS) as users:
        for _ in count():
            list(users.map(turn, range(USERS)))
            if until():
                return


def states(service: Service) -> dict[int, str]:
    return {policy["version"]: policy["state"] for policy in service.get("/v1/policies")["data"]}


def test_it_learns_by_a_canary_and_a_rollback_holds(service: Service) -> None:
    live_a_while(service, lambda: "canary" in states(service).values())
    live_a_while(service, lambda: states(service)[2] in ("live", "rolled_back"))
    assert service.get("/v1/experiments")["data"][-1]["canary"] == 2
    if states(service)[2] == "rolled_back":  # its few users may have liked it less
        service.post("/v1/policies/2/promote", {"why": "the test goes on"})
    wait_for(lambda: service.get("/v1/policies")["live"] >= 2, what="a version that learned")
    service.post("/v1/policies/1/rollback", {"why": "users complain"})
    assert ask(service, 0)["onward"]["policy_version"] == 1
    assert states(service)[2] == "rolled_back"


def test_every_token_rescores_and_every_update_is_repeated_to_the_bit(service: Service) -> None:
    service.stop()
    foundation = open_foundation(service.directory, service.overrides)
    try:
        turns = all_turns(foundation)
        told = {span.version.version: turn for turn in turns for span in turn.policy_versions}
        assert {1, 2} <= told.keys()
        some = [*[turn for turn in turns if turn.trainable][:12], told[2]]
        assert worst_difference_of(foundation, some) < TOLERANCE
    finally:
        foundation.close()
    overrides = [f"--set={name}={value}" for name, value in (SETTINGS | {"serving.model": smollm2()}).items()]
    replay = [sys.executable, "-m", "onward", "replay", str(service.directory), "--as-lived", "--version", "2"]
    done = subprocess.run([*replay, *overrides], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "all as they were lived" in done.stdout
