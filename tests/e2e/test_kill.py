"""SIGKILL under load: nothing acknowledged is missing, nothing is trained twice, versions continue."""

import os
import signal
from collections.abc import Callable

from service_tree import Service, wait_for
from traffic import Traffic, check_nothing_missing, check_trained_once, stored, versions

MakeService = Callable[..., Service]


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
