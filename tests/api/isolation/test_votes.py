"""What one says of another's turns counts for nothing, also where nobody could tell it that it has no such turn."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from api_harness import SPEC, Service
from planted_organisations import ORGANISATIONS, POLICIES, key, keys
from stepping import step
from told import written

from core.clock import SystemClock
from core.ids import InferenceId, Namespace
from core.settings import ScoringSettings
from onward.replays.selection.known import these_known
from scoring.stage import Scorer

WORD = "a word of somebody else"
OWN = ("accepted", "comment")


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service(keys=keys(), policies=POLICIES)


@pytest.fixture
def turns(service: Service) -> dict[str, str]:
    """Return the turn of each organisation, which it said something about."""
    made = {}
    for name in ORGANISATIONS:
        headers = bearer(name)
        answer = service.chat(f"{name} asks", headers=headers, session_id="the-same-everywhere")
        made[name] = answer.headers["x-onward-inference-id"]
        service.turn(made[name])
        for metric, value in zip(OWN, (True, f"{name} says"), strict=True):
            told = {"inference_id": made[name], "metric_name": metric, "value": value, "feedback_id": metric}
            assert service.post("/v1/feedback", told, **headers).status_code == 200
    written(service)
    return made


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key(name)}"}


def vote(service: Service, turns: dict[str, str]) -> set[int]:
    """Let each say that every other's answer is bad, under the same ids; return the statuses of the answers."""
    answers = set()
    for name, other in permutations(ORGANISATIONS, 2):
        for metric, value in zip(OWN, (False, WORD), strict=True):
            told = {"inference_id": turns[other], "metric_name": metric, "value": value}
            told |= {"feedback_id": f"{metric}-of-{other}"}
            answers.add(service.post("/v1/feedback", told, **bearer(name)).status_code)
    return answers


def seen(service: Service, name: str, turn: str) -> list[Any]:
    paths = (f"/v1/turns/{turn}", f"/v1/rewards/{turn}", "/v1/sessions/the-same-everywhere", "/v1/sessions")
    paths += ("/v1/clients", "/v1/rewards", "/v1/curves")
    return [service.get(path, **bearer(name)).json() for path in paths]


def score(service: Service) -> None:
    log, store = service.services.log, service.services.store
    scorer = Scorer(log, store, SPEC, ScoringSettings(tick_s=0.001), SystemClock())
    try:
        while step(scorer, 0.05):
            pass
    finally:
        scorer.close()


def test_a_vote_on_anothers_turn_is_refused_as_one_on_nobodys(service: Service, turns: dict[str, str]) -> None:
    assert vote(service, turns) == {404}


def test_a_vote_that_nobody_could_check_counts_for_nothing(service: Service, turns: dict[str, str]) -> None:
    before = {name: seen(service, name, turn) for name, turn in turns.items()}
    service.store.broken = True
    try:
        assert vote(service, turns) == {202}
    finally:
        service.store.broken = False
    written(service)
    assert len(service.outcomes()) == len(ORGANISATIONS) * 2 + len(list(permutations(ORGANISATIONS, 2))) * 2
    assert {name: seen(service, name, turn) for name, turn in turns.items()} == before
    score(service)
    with service.store.look() as view:
        for name, turn in turns.items():
            rewards = view.rewards.after(Namespace(name), 0, 100)
            assert {reward.inference_id for _, reward in rewards} == {turn}
            assert rewards[-1][1].components["accepted"] == 1.0
            (known,) = these_known(view, [InferenceId(turn)])
            assert {outcome.name for outcome in known.heard} >= set(OWN)
            assert {outcome.namespace for outcome in known.heard} == {name}, "or an export would have it"
