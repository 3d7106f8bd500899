"""SIGKILL under load: nothing acknowledged is missing, nothing is trained twice, versions continue."""

import http.client
import os
import signal
import threading
from collections.abc import Callable

from service_tree import Refused, Service, wait_for

from core.ids import base_ref
from onward.replays.proof import lineage_of, prove_exactly_once
from onward.wiring.foundation import open_foundation

MakeService = Callable[..., Service]


class Traffic:
    """Users that record what was acknowledged to them."""

    def __init__(self, service: Service, threads: int) -> None:
        self._service = service
        self._url = service.url
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
            try:
                answer = self._service.chat(f"[web] write total_{index}_{number}(xs): sum of xs", max_tokens=24)
                self.turns.append(answer["onward"]["inference_id"])
                said = self._service.post(
                    "/v1/feedback",
                    {
                        "inference_id": answer["onward"]["inference_id"],
                        "metric_name": "accepted" if number % 3 else "rejected",
                        "value": True,
                    },
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


def check_trained_once(service: Service) -> None:
    foundation = open_foundation(service.directory, service.overrides)
    try:
        newest = versions(service)
        updates = prove_exactly_once(lineage_of(foundation, base_ref(newest)))
        assert updates > 0
    finally:
        foundation.close()


def test_kill_the_service(make_service: MakeService) -> None:
    service = make_service(
        learner__batch__turns=16, learner__batch__min_turns=8, learner__batch__max_wait_s=0.5
    ).start()
    traffic = Traffic(service, threads=6)
    wait_for(lambda: versions(service) >= 4, 300, "a fourth version")
    service.kill()
    traffic.stop()
    service.start()
    before = versions(service)
    again = Traffic(service, threads=6)
    wait_for(lambda: versions(service) > before + 1, 300, "further versions")
    again.stop()
    for part in (traffic, again):
        wait_for(lambda part=part: stored(service, part), what="the writer")  # type: ignore[misc]
        check_nothing_missing(service, part)
    check_trained_once(service)


def stored(service: Service, traffic: Traffic) -> bool:
    try:
        check_nothing_missing(service, traffic)
    except AssertionError:
        return False
    return True


def test_kill_the_learner_of_adapters(make_service: MakeService) -> None:
    """One of whole weights is killed in `tests/faults`."""
    service = make_service(
        learner__batch__turns=16,
        learner__batch__min_turns=8,
        learner__batch__max_wait_s=0.5,
        learner__lora__rank=4,
        learner__checkpoints__every_s=2,
    ).start()
    traffic = Traffic(service, threads=6)
    for _ in range(2):
        before = versions(service)
        wait_for(lambda before=before: versions(service) >= before + 2, 300, "two further versions")  # type: ignore[misc]
        os.kill(service.learner_pid(), signal.SIGKILL)
    before = versions(service)
    wait_for(lambda: versions(service) > before + 1, 300, "versions after the last kill")
    traffic.stop()
    check_trained_once(service)
