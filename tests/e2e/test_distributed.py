"""The engineer's stack on one machine: Kafka, Postgres and Redis, two of each stage, two SGLang engines. Whatever is
killed meanwhile, what was acknowledged is there, and trained, once."""

import http.client
import json
import os
import random
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import distributed_settings
from service_tree import Service, simulate, wait_for
from sglang_service import sglang_service

from core.ids import InferenceId
from core.store import turns
from onward.proof import lineage_of, prove_exactly_once
from onward.wiring import Foundation, open_foundation

pytestmark = pytest.mark.timeout(900)
SETTINGS: dict[str, Any] = {
    "serving.sglang.replicas": 2,
    "serving.min_swap_interval_s": 0.5,
    "processes.api": 2,
    "processes.ingest": 2,
    "processes.score": 2,
    "processes.release": 2,
    "learner.enabled": "true",
    "learner.batch_turns": 16,
    "learner.min_turns": 8,
    "release.canary": "off",
    "release.lease_s": 2.0,
}
KILLS = int(os.environ.get("KILLS", "2"))  # of each stage
BACK_TIMEOUT_S = 120
AWAY = (urllib.error.URLError, http.client.HTTPException, OSError)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with (
        distributed_settings() as services,
        sglang_service(tmp_path_factory.mktemp("distributed"), SETTINGS | services) as made,
    ):
        yield made


@pytest.fixture
def foundation(service: Service) -> Iterator[Foundation]:
    opened = open_foundation(service.directory, service.overrides)
    yield opened
    opened.close()


def stage(service: Service, name: str) -> psutil.Process:
    """Raises LookupError while there is none."""
    for child in psutil.Process(service.pid).children():
        with suppress(psutil.NoSuchProcess):  # it ends just now
            if name in child.cmdline():
                return child
    raise LookupError(name)


class Users:
    """They write down what was acknowledged to them, by either replica, and go on when one is away."""

    def __init__(self, service: Service, threads: int = 4) -> None:
        self._urls = service.urls
        self._over = threading.Event()
        self.inference_ids: list[InferenceId] = []
        self.outcome_ids: list[str] = []
        self.refused: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        while not self._over.is_set():
            question = {"role": "user", "content": f"[web] write f{chance.randrange(1000)}(xs): sum of xs"}
            body = {"model": "onward-tiny", "messages": [question], "max_tokens": 12}
            answer = self._post(chance, "/v1/chat/completions", body)
            if answer is None or not answer["onward"]["logged"]:
                continue
            inference_id = InferenceId(answer["onward"]["inference_id"])
            self.inference_ids.append(inference_id)
            outcome = {"inference_id": inference_id, "metric_name": chance.choice(("accepted", "rejected"))}
            said = self._post(chance, "/v1/feedback", {**outcome, "value": True})
            if said is not None:
                self.outcome_ids.append(said["feedback_id"])

    def _post(self, chance: random.Random, path: str, body: Mapping[str, Any]) -> Any:
        """None: nothing was acknowledged."""
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(chance.choice(self._urls) + path, data, headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except AWAY as error:
            self.refused[str(error)] += 1
            self._over.wait(0.1)
            return None

    def leave(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def is_stored(foundation: Foundation, users: Users) -> bool:
    with foundation.store.read() as connection:
        found = turns.get_turns(connection, users.inference_ids)
        outcomes = {outcome.outcome_id for outcome in turns.get_turn_outcomes(connection, users.inference_ids)}
    return set(found) == set(users.inference_ids) and set(users.outcome_ids) <= outcomes


def versions(service: Service) -> int:
    return max(policy["version"] for policy in service.get("/v1/policies")["data"])


def test_simulated_users_lose_nothing(service: Service, tmp_path: Path) -> None:
    users = simulate(service, tmp_path / "demo", seconds=20, rate=3)
    users.communicate(timeout=300)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["lost_turns"], report["lost_outcomes"], report["failed_requests"]) == (0, 0, 0), report["failures"]
    assert report["turns"] > 20


@pytest.mark.parametrize("name", ["ingest", "score", "learner", "release", "api"])
def test_a_stage_that_is_killed_costs_nothing_acknowledged(service: Service, foundation: Foundation, name: str) -> None:
    users = Users(service)
    try:
        for kill in range(KILLS):
            one = name if name == "learner" else f"{name}-{1 + kill % 2}"
            before, made = stage(service, one).pid, versions(service)
            wait_for(lambda made=made: versions(service) > made, BACK_TIMEOUT_S, "a further version")
            stage(service, one).kill()
            wait_for(lambda one=one, pid=before: is_back(service, one, pid), BACK_TIMEOUT_S, f"{one}'s return")
        made = versions(service)
        wait_for(lambda: versions(service) > made, BACK_TIMEOUT_S, "a version after the last kill")
    finally:
        users.leave()
    assert len(users.inference_ids) > 10
    wait_for(lambda: is_stored(foundation, users), 60, "what was acknowledged, in the store")
    assert prove_exactly_once(lineage_of(foundation, versions(service))) > 0


def is_back(service: Service, name: str, before: int) -> bool:
    try:
        pid = stage(service, name).pid
    except LookupError:
        return False
    ready = service.directory / "ready" / f"{name}.pid"
    return pid != before and ready.exists() and ready.read_text() == str(pid)
