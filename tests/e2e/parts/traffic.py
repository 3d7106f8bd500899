"""Users of a service that may be killed, and what must be true of it afterwards."""

import http.client
import threading

from service_tree import Refused, Service, wait_for

from core.ids import base_ref
from learner.versions.manifest import Manifest
from onward.replays.proof import lineage_of, prove_exactly_once
from onward.wiring.foundation import open_foundation


class Traffic:
    """Users that record what was acknowledged to them. They ask the API's replicas in turns, and judge at another."""

    def __init__(self, service: Service, threads: int) -> None:
        self._service = service
        self._replicas = len(service.urls)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(threads)]
        self.turns: list[str] = []
        self.outcomes: list[str] = []
        for thread in self._threads:
            thread.start()

    def _run(self, index: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            here, there = number % self._replicas, (number + 1) % self._replicas
            try:
                text = f"[web] write total_{index}_{number}(xs): sum of xs"
                answer = self._service.chat(text, max_tokens=24, at=here)
                self.turns.append(answer["onward"]["inference_id"])
                said = self._service.post(
                    "/v1/feedback",
                    {
                        "inference_id": answer["onward"]["inference_id"],
                        "metric_name": "accepted" if number % 3 else "rejected",
                        "value": True,
                    },
                    at=there,
                )
                self.outcomes.append(said["feedback_id"])
            except (Refused, OSError, http.client.HTTPException):  # what was not acknowledged does not count
                if not self._service.is_alive:
                    return
                self._stop.wait(0.2)  # it is busy, or is being killed

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def check_nothing_missing(service: Service, traffic: Traffic) -> None:
    foundation = open_foundation(service.directory, service.overrides)
    try:
        with foundation.store.look() as view:
            stored = view.turns.get_many(traffic.turns)  # type: ignore[arg-type]
            assert set(traffic.turns) == set(stored)
            outcomes = {outcome.outcome_id for outcome in view.outcomes.of_turns(traffic.turns)}  # type: ignore[arg-type]
            assert set(traffic.outcomes) <= outcomes
    finally:
        foundation.close()


def versions(service: Service) -> int:
    return max(policy["version"] for policy in service.get("/v1/policies")["data"])


def check_trained_once(service: Service) -> list[Manifest]:
    """Check it, and return the manifests of the newest version's lineage."""
    foundation = open_foundation(service.directory, service.overrides)
    try:
        newest = versions(service)
        lineage = lineage_of(foundation, base_ref(newest))
        assert prove_exactly_once(lineage) > 0
        return lineage
    finally:
        foundation.close()


def stored(service: Service, traffic: Traffic) -> bool:
    try:
        check_nothing_missing(service, traffic)
    except AssertionError:
        return False
    return True


def wait_for_more(service: Service, count: int) -> None:
    before = versions(service)
    wait_for(lambda: versions(service) >= before + count, 300, f"{count} further versions")
