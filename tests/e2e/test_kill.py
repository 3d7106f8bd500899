"""SIGKILL under load: nothing acknowledged is missing, nothing is trained twice, versions continue."""

import os
import signal
from collections.abc import Callable

import pytest
from service_tree import Refused, Service, wait_for
from traffic import Traffic, check_nothing_missing, check_trained_once, stored, versions

MakeService = Callable[..., Service]


def test_kill_a_process_of_the_api_and_then_the_service(make_service: MakeService) -> None:
    service = make_service(
        processes__api=2, learner__batch__turns=16, learner__batch__min_turns=8, learner__batch__max_wait_s=0.5
    ).start()
    check_two_are_one(service)
    traffic = Traffic(service, threads=6)
    wait_for(lambda: versions(service) >= 2, 300, "a second version")
    wait_for(lambda: answer_as_learned(service), 300, "a learned version that answers at both processes")
    urls, before = service.urls, service.child_pid("api")
    theirs = service.chat("[web] write total(xs): sum of xs", max_tokens=8, at=1)["onward"]["inference_id"]
    os.kill(before, signal.SIGKILL)
    judge_at_the_other(service, traffic, theirs)
    wait_for(lambda: is_back(service, before), 300, "the other process of the API")
    assert service.urls == urls
    service.post("/v1/feedback", {"inference_id": traffic.turns[-1], "metric_name": "accepted", "value": True}, at=1)
    seen = versions(service)
    wait_for(lambda: versions(service) >= seen + 2, 300, "two further versions")
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


def check_two_are_one(service: Service) -> None:
    """Check that a session, its feedback and what is known of both are whole across both processes of the API."""
    said: list[dict[str, str]] = []
    parent = session = None
    for number in range(4):
        said.append({"role": "user", "content": f"[web] write total_{number}(xs): sum of xs"})
        request = {"model": "onward-tiny", "messages": said, "max_tokens": 8}
        answer = service.post("/v1/chat/completions", request, at=number % 2)
        told = answer["onward"]
        assert (told["parent_id"], told["session_id"]) == (parent, session or told["session_id"])
        parent, session = told["inference_id"], told["session_id"]
        said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        outcome = {"inference_id": parent, "feedback_id": f"of-{parent}", "metric_name": "accepted", "value": True}
        there, here = ((number + 1) % 2, number % 2)
        service.post("/v1/feedback", outcome, at=there)
        service.post("/v1/feedback", outcome, at=here)
        with pytest.raises(Refused, match="409"):
            service.post("/v1/feedback", {**outcome, "value": False}, at=here)
    wait_for(lambda: tell_the_same(service, turns=4), what="the last minute, at both")  # counts are told together


def tell_the_same(service: Service, turns: int) -> bool:
    first, second = (service.get("/v1/status", at=at) for at in range(2))
    told = first["last_minute"]
    return all(first[same] == second[same] for same in ("model", "live", "last_minute")) and told["turns"] == turns


def answer_as_learned(service: Service) -> bool:
    """Return whether both processes answer by a version that was learned, not by the first."""
    asked = (service.chat("[web] write total(xs): sum of xs", max_tokens=8, at=at) for at in range(2))
    return all(answer["onward"]["policy_version"] > 1 for answer in asked)


def judge_at_the_other(service: Service, traffic: Traffic, turn: str) -> None:
    """Judge a turn of the process that was killed at the one that goes on, twice, and let that one answer, too.

    What it acknowledges has to be there at the end as the rest."""
    outcome = {"inference_id": turn, "feedback_id": f"of-{turn}", "metric_name": "accepted", "value": True}
    said = [service.post("/v1/feedback", outcome, at=0)["feedback_id"] for _ in range(2)]
    assert said == [outcome["feedback_id"]] * 2
    answer = service.chat("[web] write total(xs): sum of xs", max_tokens=8, at=0)
    traffic.turns += [turn, answer["onward"]["inference_id"]]
    traffic.outcomes += said[:1]


def is_back(service: Service, before: int) -> bool:
    """Return whether the second process of the API is another one, and serves."""
    if service.child_pid("api") == before:
        return False
    try:
        return all(service.get("/readyz", at=at)["status"] == "ok" for at in range(2))
    except (Refused, OSError):
        return False


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
