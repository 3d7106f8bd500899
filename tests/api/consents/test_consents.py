"""A user's word on what may be done with what they say holds from its answer on, and for what was said before."""

import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import made_events
import pytest
from api_harness import MODEL, Service, serve, serve_replicas, wait_for
from at_rest import forms_of, where_at_rest
from byte_renderer import ids
from scripted_policy import says

from core.ids import Namespace, SessionId
from core.operations.consents import Consent
from core.operations.exclusions import is_excluded
from core.records.consent_words import give

SONG = "the canary sang at dawn"
FORMS = forms_of(SONG, ids(SONG))


def say(service: Service, text: str = "hi", **fields: Any) -> Any:
    answer = service.chat(text, **fields)
    assert answer.status_code == 200, answer.text
    return service.turn(answer.json()["onward"]["inference_id"])


def put(service: Service, path: str, status: int = 200, **body: Any) -> Any:
    answer = service.http.put(f"/v1/{path}/consent", json={"why": "they said so", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def excluded(service: Service, turn: Any) -> bool:
    with service.store.look() as view:
        rewarded = made_events.reward(turn.inference_id, decided_at=service.services.clock.now())
        return is_excluded(view.exclusions.in_order(), turn, rewarded)


def test_what_may_not_be_learned_is_excluded_before_and_after_until_it_may(service: Service) -> None:
    earlier, others = say(service, user="ada"), say(service, user="eve")
    word = put(service, "users/ada", learn=False, purposes=["support"])
    assert (word["learn"], word["store"], word["purposes"]) == (False, True, ["support"])
    assert (excluded(service, earlier), excluded(service, others)) == (True, False)
    later = say(service, user="ada", headers={"x-onward-learn": "true"})
    assert (later.learn, later.text, excluded(service, later)) == (False, "hello", True)
    assert say(service, user="eve").learn
    put(service, "users/ada", learn=True)
    assert not excluded(service, earlier)
    assert say(service, user="ada").learn
    assert not say(service, user="ada", headers={"x-onward-learn": "false"}).learn
    found = service.get("/v1/users/ada/consent").json()
    assert (found["learn"], found["store"], found["user"]) == (True, True, earlier.user_id)
    first, second = reversed(found["history"])
    assert [(each["learn"], each["why"], each["by"]) for each in (first, second)] == [
        (False, "they said so", "keyless"),
        (True, "they said so", "keyless"),
    ]
    assert second["purposes"] == ["support"]


def test_saying_the_same_again_gives_no_second_order(service: Service) -> None:
    put(service, "users/ada", learn=False)
    put(service, "users/ada", learn=False)
    put(service, "users/ada", store=False)
    with service.store.look() as view:
        (order,) = view.exclusions.in_order()
    assert (
        service.post(f"/v1/exclusions/{order.exclusion_id}/lift", {"why": "no"}).json()["error"]["code"]
        == "consent_holds"
    )
    put(service, "users/ada", learn=True, store=True)
    with service.store.look() as view:
        assert view.exclusions.get(order.exclusion_id).lifted_at is not None  # type: ignore[union-attr]


def test_a_session_is_narrowed_however_it_is_found(service: Service) -> None:
    service.policy.default = says("one")
    first = say(service, "a")
    put(service, f"sessions/{first.session_id}", learn=False)
    told = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "b"}]
    answer = service.chat(*told).json()
    second = service.turn(answer["onward"]["inference_id"])
    assert (second.session_id, second.learn) == (first.session_id, False)
    assert excluded(service, first)
    assert say(service, "elsewhere").learn
    put(service, "sessions/nobodys", 404, learn=False)


def test_words_that_may_not_be_stored_rest_nowhere(service: Service, tmp_path: Path) -> None:
    service.policy.default = says(SONG)
    put(service, "users/ada", store=False)
    turn = say(service, SONG, user="ada", metadata={"note": SONG}, store=True)
    assert (turn.text, turn.unstored is None, turn.learn, turn.untrainable_reasons) == (
        "",
        False,
        False,
        ("not_stored",),
    )
    assert where_at_rest(tmp_path, FORMS) == []
    said = {"inference_id": turn.inference_id, "metric_name": "comment", "value": SONG}
    answer = service.post("/v1/feedback", said)
    assert (answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
        403,
        "value",
        "not_stored",
    )
    accepted = {"inference_id": turn.inference_id, "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", accepted | {"tags": {"a": SONG}}).json()["error"]["param"] == "tags"
    assert service.post("/v1/feedback", accepted | {"evidence": SONG}).json()["error"]["param"] == "evidence"
    assert service.post("/v1/feedback", accepted).status_code == 200
    assert where_at_rest(tmp_path, FORMS) == []


def test_what_may_not_be_stored_any_more_is_erased_and_nobody_elses(service: Service) -> None:
    service.policy.default = says(SONG)
    earlier, others = say(service, user="ada"), say(service, user="eve")
    word = put(service, "users/ada", store=False)
    order = service.get(f"/v1/erasures/{word['erasure_id']}").json()
    assert (order["kind"], order["subject"], order["state"], order["sessions"]) == (
        "user",
        earlier.user_id,
        "ordered",
        1,
    )
    assert order["why"] == "consent of a user", "the reason stands with the word, and goes with it"
    assert (service.turn(earlier.inference_id).text, service.turn(others.inference_id).text) == ("", SONG)
    assert say(service, SONG, user="ada").text == "", "it holds on"
    assert put(service, "users/ada", store=False)["erasure_id"] == word["erasure_id"]
    assert put(service, "users/ada", learn=False)["erasure_id"] is None
    assert put(service, "users/nobody", store=False)["erasure_id"] is None
    of_session = put(service, f"sessions/{others.session_id}", store=False)
    assert of_session["erasure_id"] not in (None, word["erasure_id"])
    assert service.turn(others.inference_id).text == ""


def test_what_was_said_between_two_words_is_erased_while_the_first_order_is_open(service: Service) -> None:
    say(service, user="ada", session_id="talk")
    first = put(service, "users/ada", store=False)["erasure_id"]
    put(service, "users/ada", store=True)
    between = say(service, user="ada", session_id="talk")
    assert between.text
    second = put(service, "users/ada", store=False)["erasure_id"]
    assert second != first
    assert service.turn(between.inference_id).text == ""


def test_a_comment_on_a_turn_that_was_not_stored_is_erased(service: Service) -> None:
    turn = say(service, user="ada", store=False)
    assert refused(service, inference_id=turn.inference_id) == (200, None)
    (comment,) = wait_for(service.outcomes, "the comment")
    assert comment.value == SONG
    assert put(service, "users/ada", store=False)["erasure_id"] is not None
    assert [each.value for each in service.outcomes()] == [None]


def test_what_is_on_its_way_to_the_store_is_erased_too(service: Service) -> None:
    service.writing.clear()
    turn_id = service.chat("hi", user="ada").json()["onward"]["inference_id"]
    threading.Timer(0.1, service.writing.set).start()
    assert put(service, "users/ada", store=False)["erasure_id"] is not None
    assert service.turn(turn_id).text == ""


def test_words_of_a_user_who_may_not_be_learned_from_teach_nothing_of_others_turns(service: Service) -> None:
    turn = say(service, user="eve")
    put(service, "users/ada", learn=False)
    for user in ("ada", "eve"):
        said = {"inference_id": turn.inference_id, "metric_name": "comment", "value": f"by {user}", "user": user}
        assert service.post("/v1/feedback", said).status_code == 200
    wait_for(lambda: len(service.outcomes()) == 2, "both")
    assert {each.value: each.learn for each in service.outcomes()} == {"by ada": False, "by eve": True}


def test_a_turn_under_way_when_the_word_comes_is_not_stored(service: Service, tmp_path: Path) -> None:
    gate = threading.Event()
    service.policy.scripts.append(says(SONG, gate=gate))
    body = {"model": MODEL, "messages": [{"role": "user", "content": SONG}], "stream": True, "user": "ada"}
    with service.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        put(service, "users/ada", store=False)
        gate.set()
        assert "data: [DONE]" in list(lines)
    wait_for(lambda: service.all_turns(), "the turn in the store")
    (turn,) = service.all_turns()
    assert (turn.unstored is None, turn.untrainable_reasons) == (False, ("not_stored",))
    assert where_at_rest(tmp_path, FORMS) == []


def test_a_turn_under_way_at_another_replica_is_not_stored_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.consents.known.REFRESH_S", 0.0)  # both ask the store each time
    gate = threading.Event()
    with serve_replicas(tmp_path / "service", 2) as (one, two):
        two.policy.scripts.append(says(SONG, gate=gate))
        body = {"model": MODEL, "messages": [{"role": "user", "content": SONG}], "stream": True, "user": "ada"}
        with two.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            put(one, "users/ada", store=False)
            gate.set()
            assert "data: [DONE]" in list(lines)
        (turn,) = wait_for(two.all_turns, "the turn in the store")
        assert turn.untrainable_reasons == ("not_stored",)
        assert where_at_rest(tmp_path, FORMS) == []


def refused(service: Service, **said: Any) -> tuple[int, Any]:
    """Give feedback; return the status, and of an error the field."""
    answer = service.post("/v1/feedback", {"metric_name": "comment", "value": SONG, **said})
    return answer.status_code, answer.json().get("error", {}).get("param")


def test_words_on_a_session_are_refused_by_the_word_of_whoever_spoke_in_it(service: Service) -> None:
    others = say(service, user="eve", session_id="another")
    put(service, "users/ada", store=False)
    turn = say(service, user="ada", session_id="talk")
    assert refused(service, session_id=turn.session_id) == (403, "value")
    assert refused(service, session_id=turn.session_id, metric_name="shipped", value=True) == (200, None)
    assert refused(service, session_id=others.session_id) == (200, None)
    assert refused(service, session_id="nowhere") == (404, "session_id")


def test_words_on_what_was_erased_are_refused(service: Service) -> None:
    turn = say(service, user="ada", session_id="talk")
    put(service, "users/ada", store=False)
    assert service.turn(turn.inference_id).user_id is None
    assert refused(service, inference_id=turn.inference_id) == (403, "value")
    assert refused(service, session_id=turn.session_id) == (403, "value")
    assert refused(service, inference_id=turn.inference_id, metric_name="accepted", value=True) == (200, None)


def test_no_tag_of_a_client_is_taken_for_a_reports(service: Service, tmp_path: Path) -> None:
    put(service, "users/ada", store=False)
    turn = say(service, user="ada")
    said = {"metric_name": "accepted", "value": True, "tags": {"reported_by": "me", "note": SONG}}
    assert refused(service, inference_id=turn.inference_id, **said) == (403, "tags")
    assert where_at_rest(tmp_path, FORMS) == []


def test_words_wait_while_nobody_can_say_whose_turn_it_is(service: Service) -> None:
    put(service, "users/eve", store=False)
    turn, theirs = say(service, user="ada"), say(service, user="eve")
    service.store.broken = True
    for each in (turn, theirs):
        assert refused(service, inference_id=each.inference_id)[0] == 503
        assert refused(service, session_id=each.session_id)[0] == 503
        assert refused(service, inference_id=each.inference_id, metric_name="accepted", value=True)[0] == 200
    service.store.broken = False
    assert refused(service, inference_id=turn.inference_id) == (200, None)
    assert refused(service, inference_id=theirs.inference_id) == (403, "value")


def test_another_replica_hears_of_it(tmp_path: Path) -> None:
    with serve_replicas(tmp_path / "service", 2) as (one, two):
        assert say(two, user="ada").learn
        put(one, "users/ada", learn=False)
        wait_for(lambda: not say(two, user="ada").learn, "the other replica to hear of it")


def test_of_words_that_come_from_another_cluster_the_newest_holds(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.consents.known.REFRESH_S", 0.0)  # it asks the store each time
    ada = say(service, user="ada").user_id
    put(service, "users/ada", learn=True)

    def comes(at: datetime) -> None:
        word = Consent(
            namespace=Namespace("default"), kind="user", subject=ada, learn=False, store=True, why="there",
            by="cluster edge", at=at,
        )  # fmt: skip
        with service.store.work() as work:
            give(work, word, service.services.clock.now())

    comes(service.services.clock.now() - timedelta(hours=1))
    assert say(service, user="ada").learn
    ahead = service.services.clock.now() + timedelta(hours=1)
    comes(ahead)
    wait_for(lambda: not say(service, user="ada").learn, "the newer word to hold")
    word = put(service, "users/ada", learn=True)
    assert word["at"] > ahead.isoformat(), "a word comes after what was known when it was brought"
    assert say(service, user="ada").learn
    found = service.get("/v1/users/ada/consent").json()
    assert [each["by"] for each in found["history"]] == ["keyless", "cluster edge", "keyless", "cluster edge"]


def test_a_store_that_does_not_answer_leaves_what_is_known(service: Service) -> None:
    put(service, "users/ada", learn=False)
    service.store.broken = True
    assert service.chat("hi", user="ada").status_code == 200
    service.store.broken = False
    (turn,) = wait_for(service.all_turns, "the turn")
    assert not turn.learn


def test_words_are_refused_that_contradict_themselves(service: Service) -> None:
    assert put(service, "users/ada", 400)["error"]["param"] == "learn"
    assert put(service, "users/ada", 400, learn=True, store=False)["error"]["param"] == "learn"
    assert put(service, "users/ada", 400, learn=False, why="")["error"]["param"] == "why"
    assert put(service, "users/ada", 400, lern=False)["error"]["param"] == "lern"


def test_a_key_of_one_user_speaks_for_nobody_else(tmp_path: Path) -> None:
    keys = [{"key": f"{name}-s-own-key", "namespace": "ours", "user": name} for name in ("ada", "bob")]
    with serve(tmp_path / "service", keys=keys) as service:
        of = {name: {"authorization": f"Bearer {name}-s-own-key"} for name in ("ada", "bob")}
        session = service.chat("hi", headers=of["ada"]).json()["onward"]["session_id"]
        wait_for(lambda: service.all_turns())
        for path in ("users/ada", f"sessions/{session}"):
            for name, status in (("bob", 404), ("ada", 200)):
                body = {"learn": False, "why": "mine"}
                answer = service.http.put(f"/v1/{path}/consent", json=body, headers=of[name])
                assert answer.status_code == status, answer.text
        with service.store.look() as view:
            orders = view.exclusions.in_order()
        assert [each.selection.sessions or each.selection.namespace for each in orders] == [
            "ours",
            (SessionId(session),),
        ]
        assert {each.selection.namespace for each in orders} == {Namespace("ours")}


@pytest.mark.parametrize("user", ["a/b", "ä ö", "x" * 500])
def test_users_have_any_name(service: Service, user: str) -> None:
    turn = say(service, user=user)
    assert service.get(f"/v1/users/{quote(user, safe='')}/consent").json()["user"] == turn.user_id
