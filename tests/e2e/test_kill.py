"""SIGKILL under load: nothing acknowledged is missing, nothing is trained twice, versions continue."""

import os
import signal
from collections.abc import Callable

from service_tree import Service, wait_for
from traffic import Traffic, check_nothing_missing, check_trained_once, stored, wait_for_more

MakeService = Callable[..., Service]


def kill_the_learner(service: Service) -> None:
    os.kill(service.learner_pid(), signal.SIGKILL)


def teaching(make_service: MakeService, **more: int) -> Service:
    """Start a service whose learner makes a version of a few turns."""
    batch = {"learner__batch__turns": 16, "learner__batch__min_turns": 8, "learner__batch__max_wait_s": 0.5}
    return make_service(**batch, learner__checkpoints__every_s=2, **more).start()


def test_kill_the_service_and_its_learner(make_service: MakeService) -> None:
    """The service is killed with all that it started, and then the learner, twice."""
    service = teaching(make_service)
    traffic = Traffic(service, threads=6)
    wait_for_more(service, 3)
    service.kill()
    traffic.stop()
    service.start()
    again = Traffic(service, threads=6)
    for _ in range(2):
        wait_for_more(service, 2)
        kill_the_learner(service)
    wait_for_more(service, 2)
    again.stop()
    for part in (traffic, again):
        wait_for(lambda part=part: stored(service, part), what="the writer")  # type: ignore[misc]
        check_nothing_missing(service, part)
    check_trained_once(service)


def test_kill_the_learner_of_adapters(make_service: MakeService) -> None:
    service = teaching(make_service, learner__lora__rank=4)
    traffic = Traffic(service, threads=6)
    wait_for_more(service, 2)
    kill_the_learner(service)
    wait_for_more(service, 2)
    traffic.stop()
    check_trained_once(service)
