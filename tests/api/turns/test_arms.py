"""A turn records its assigned arm, the arm that served it, and the probability of the assignment."""

from api_harness import Service
from scripted_policy import says

from core.errors import EngineUnavailable, NotFinite
from core.ids import base_ref
from core.operations.fleet import Assignment

CANARY = Assignment(arm="canary", version=base_ref(5), experiment_id="e", propensity=0.2)


def test_a_turn_of_no_experiment_is_live(service: Service) -> None:
    answer = service.chat("hi")
    turn = service.turn(answer.json()["onward"]["inference_id"])
    assert (turn.arm, turn.arm_assigned, turn.propensity, turn.experiment_id) == ("live", "live", 1.0, None)
    assert answer.headers["x-onward-arm"] == "live"
    assert service.policy.requests[0].version is None


def test_a_canarys_turn_asks_for_its_version(service: Service) -> None:
    service.traffic.assignment = CANARY
    service.policy.scripts.append(says("hello", versions=[5] * 6))
    answer = service.chat("hi")
    turn = service.turn(answer.json()["onward"]["inference_id"])
    assert service.policy.requests[0].version == base_ref(5)
    assert (turn.arm, turn.arm_assigned, turn.propensity, turn.experiment_id) == ("canary", "canary", 0.2, "e")
    assert answer.headers["x-onward-arm"] == "canary"


def test_who_is_in_an_experiments_control_is_known(service: Service) -> None:
    service.traffic.assignment = Assignment(experiment_id="e", propensity=0.8)
    turn = service.turn(service.chat("hi").json()["onward"]["inference_id"])
    assert (turn.arm, turn.arm_assigned, turn.propensity, turn.experiment_id) == ("live", "live", 0.8, "e")


def test_where_no_engine_has_the_canary_the_live_version_serves(service: Service) -> None:
    service.traffic.assignment = CANARY
    service.policy.scripts.append(says("hello", fails_at=0))
    answer = service.chat("hi")
    turn = service.turn(answer.json()["onward"]["inference_id"])
    assert [request.version for request in service.policy.requests] == [base_ref(5), None]
    assert (turn.arm, turn.arm_assigned) == ("live", "canary")
    assert (turn.text, turn.trainable) == ("hello", True)


def test_a_canary_whose_numbers_are_not_finite_is_named_on_the_turn_that_another_served(service: Service) -> None:
    service.traffic.assignment = CANARY
    service.policy.scripts.append(says("hello", fails_at=0, error=NotFinite(base_ref(5))))
    turn = service.turn(service.chat("hi").json()["onward"]["inference_id"])
    assert (turn.not_finite, turn.arm, turn.text, turn.trainable) == (base_ref(5), "live", "hello", True)


def test_a_canary_that_fails_after_its_first_token_is_not_covered_up(service: Service) -> None:
    service.traffic.assignment = CANARY
    service.policy.scripts += [says("hello", fails_at=1, versions=[5] * 6, error=EngineUnavailable("gone"))] * 2
    assert service.chat("hi").status_code == 503
    assert [request.version for request in service.policy.requests] == [base_ref(5)] * 2


def test_users_are_units_and_sessions_where_there_is_none(service: Service) -> None:
    service.chat("hi", user="ada")
    service.chat("ho", user="ada")
    named = service.chat("hi", headers={"x-onward-session-id": "0193e4c2-0000-7000-8000-000000000001"})
    first, second, third = service.traffic.units
    assert first == second != "ada"
    assert third == named.json()["onward"]["session_id"]


def test_all_choices_of_a_request_are_of_one_arm(service: Service) -> None:
    service.traffic.assignment = CANARY
    service.chat("hi", n=2)
    assert len(service.traffic.units) == 1
    assert [request.version for request in service.policy.requests] == [base_ref(5)] * 2
