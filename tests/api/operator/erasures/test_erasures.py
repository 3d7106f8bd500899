"""Orders to erase over HTTP: obeyed at once for whoever reads or goes on, the same when given again, and no others'."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from api_harness import Service, serve, wait_for
from made_events import policy

from core import codec
from core.events import Completion, Release
from core.ids import PolicyName
from core.operations.erasures import ERASED
from core.settings import PolicySettings

WORD = "Zugspitzfeuersalamander"
KEYS = (
    {"key": "key-that-asks", "namespace": "default", "scopes": ("chat", "feedback", "read")},
    {"key": "key-that-operates", "name": "night-shift", "namespace": "default", "scopes": ("operate", "read")},
    {"key": "key-that-rules", "name": "ada", "namespace": "default", "scopes": ("admin",)},
    {"key": "key-that-others", "namespace": "other", "scopes": ("chat", "feedback", "operate", "read")},
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", keys=KEYS) as service:
        yield service


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-that-{key}"}


def said(service: Service, user: str, *messages: dict[str, str], key: str = "asks", **fields: Any) -> Completion:
    """Ask as a user, and return the turn once it is stored."""
    told = messages or ({"role": "user", "content": f"please {WORD}"},)
    answer = service.chat(*told, headers=bearer(key), user=user, **fields)
    assert answer.status_code == 200, answer.text
    return service.turn(answer.headers["x-onward-inference-id"])


def erase(service: Service, path: str, key: str = "operates") -> Any:
    return service.delete(path, **bearer(key))


def test_nobody_reads_or_goes_on_with_it_from_the_order_on(service: Service) -> None:
    first = said(service, "mallory", session_id="talk")
    history = [*first.messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": "and on"}]
    comment = {"inference_id": first.inference_id, "metric_name": "comment", "value": f"what a {WORD}"}
    assert service.post("/v1/feedback", comment, **bearer("asks")).status_code == 200
    wait_for(lambda: service.outcomes())
    others = said(service, "alice", session_id="another")
    second = said(service, "mallory", *history, session_id="talk")
    assert second.parent_id == first.inference_id, "it would go on"
    answer = erase(service, "/v1/users/mallory?why=he%20asked")
    assert answer.status_code == 202
    order = answer.json()
    assert (order["state"], order["sessions"], order["why"], order["by"]) == ("ordered", 1, "he asked", "night-shift")
    assert order["steps"]["store"]["removed"]["turns"] == 2
    shown = [
        service.get(path, **bearer("operates")).text
        for path in (f"/v1/turns/{first.inference_id}", "/v1/sessions/talk", "/v1/sessions", "/v1/erasures")
    ]
    assert not [text for text in shown if WORD in text]
    assert service.turn(others.inference_id) == others
    third = said(service, "mallory", *history, session_id="talk")
    assert third.parent_id is None, "what is sent again is new"
    assert ERASED not in third.untrainable_reasons
    assert service.turn(first.inference_id).text == ""


def test_given_again_it_is_the_same_order_and_the_preview_changes_nothing(service: Service) -> None:
    turn = said(service, "mallory")
    told = service.post("/v1/erasures/preview", {"user": "mallory"}, **bearer("operates")).json()
    assert (told["sessions"], told["turns"], told["turns_of_others"], told["updates"]) == (1, 1, 0, 0)
    assert service.turn(turn.inference_id) == turn
    numbers = [erase(service, "/v1/users/mallory").json()["erasure_id"] for _ in range(2)]
    assert numbers == [1, 1]
    found = service.get("/v1/erasures/1", **bearer("operates")).json()
    assert (found["kind"], found["statement"], found["exclusions"]) == ("user", None, [1])


def test_what_came_since_is_of_a_second_order_even_if_it_is_on_its_way_to_the_store(service: Service) -> None:
    said(service, "mallory", session_id="talk")
    assert erase(service, "/v1/users/mallory").json()["erasure_id"] == 1
    service.writing.clear()
    answer = service.chat(f"more of {WORD}", headers=bearer("asks"), user="mallory", session_id="talk")
    assert erase(service, "/v1/users/mallory").status_code == 503, "nobody can say what came since"
    threading.Timer(0.1, service.writing.set).start()
    second = erase(service, "/v1/users/mallory").json()
    assert (second["erasure_id"], second["sessions"]) == (2, 1)
    assert service.turn(answer.headers["x-onward-inference-id"]).text == ""
    assert erase(service, "/v1/users/mallory").json()["erasure_id"] == 2


def test_reasons_of_consent_go_and_what_was_allowed_holds_on(service: Service) -> None:
    said(service, "mallory")
    word = {"learn": False, "why": f"a letter about the {WORD}"}
    assert service.http.put("/v1/users/mallory/consent", json=word, headers=bearer("asks")).status_code == 200
    order = erase(service, "/v1/users/mallory").json()
    assert order["steps"]["store"]["removed"]["consents"] == 1
    shown = [service.get(path, **bearer("asks")) for path in ("/v1/users/mallory/consent", "/v1/exclusions")]
    assert not [answer for answer in shown if WORD in answer.text]
    assert (shown[0].json()["learn"], shown[0].json()["history"][0]["why"]) == (False, "")
    assert not said(service, "mallory").learn


def test_nobody_erases_or_sees_what_is_another_namespaces(service: Service) -> None:
    turn = said(service, "mallory", session_id="talk")
    theirs = said(service, "mallory", key="others", session_id="talk")
    assert erase(service, "/v1/sessions/talk", "others").status_code == 202
    assert service.turn(turn.inference_id) == turn
    with service.store.look() as view:
        assert view.turns.get_many([theirs.inference_id])[theirs.inference_id].text == ""
    assert service.get("/v1/erasures/1", **bearer("operates")).status_code == 404
    assert erase(service, "/v1/sessions/talk?namespace=other").status_code == 403
    assert erase(service, "/v1/sessions/nowhere").status_code == 404
    assert erase(service, "/v1/users/nobody").json()["error"]["code"] == "unknown_user"
    assert erase(service, "/v1/sessions/talk?wy=typo").status_code == 400
    both = service.post("/v1/erasures/preview", {"user": "a", "session": "b"}, **bearer("operates"))
    assert both.status_code == 400


def test_a_session_that_users_share_is_erased_whole_and_the_preview_says_so(service: Service) -> None:
    first = said(service, "mallory", session_id="shared")
    wait_for(lambda: service.turn(first.inference_id))
    said(service, "alice", session_id="shared")
    told = service.post("/v1/erasures/preview", {"user": "mallory"}, **bearer("operates")).json()
    assert (told["turns"], told["turns_of_others"]) == (2, 1)
    assert "1 turn of them are others', in sessions that they share." in told["says"]


POLICIES = {"acme": PolicySettings(namespaces=("other", "other-eu")), "rest": PolicySettings(namespaces=("rest",))}


def test_an_organisation_is_erased_with_its_namespaces_and_answered_no_more(tmp_path: Path) -> None:
    with serve(tmp_path / "service", keys=KEYS, policies=POLICIES) as service:
        gone, stays = said(service, "mallory", key="others"), said(service, "mallory")
        told = service.post("/v1/erasures/preview", {"organisation": "acme"}, **bearer("rules")).json()
        assert (told["kind"], told["namespaces"], told["turns"]) == ("organisation", ["other", "other-eu"], 1)
        both = service.post("/v1/erasures/preview", {"organisation": "acme", "user": "a"}, **bearer("rules"))
        assert (both.status_code, both.json()["error"]["param"]) == (400, "organisation")
        assert service.post("/v1/erasures/preview", {"organisation": "acme"}, **bearer("operates")).status_code == 403
        assert erase(service, "/v1/organisations/acme").status_code == 403
        assert erase(service, "/v1/organisations/base", "rules").json()["error"]["code"] == "unknown_organisation"
        with service.store.work() as work:  # one whose section was taken out too soon
            work.policies.allocate(service.services.clock.now(), PolicyName("early"))
        assert erase(service, "/v1/organisations/early", "rules").json()["error"]["code"] == "unknown_namespaces"
        order = erase(service, "/v1/organisations/acme", "rules").json()
        assert erase(service, "/v1/organisations/acme", "rules").json()["erasure_id"] == order["erasure_id"] == 3
        assert (order["parts"], order["subject"], order["namespaces"]) == ([1, 2], "acme", ["other", "other-eu"])
        assert (service.turn(gone.inference_id).text, service.turn(stays.inference_id)) == ("", stays)
        feedback = {"inference_id": gone.inference_id, "metric_name": "rating", "value": 1}
        words = {"learn": False, "purposes": ["x"], "why": "x"}
        for refused in (
            service.chat("hi", headers=bearer("others")),
            service.post("/v1/feedback", feedback, **bearer("others")),
            service.http.put("/v1/users/eve/consent", json=words, headers=bearer("others")),
            service.post("/v1/logs", {"resourceLogs": []}, **bearer("others")),
        ):
            assert refused.status_code == 403, refused.request.url
            assert "was erased with the organisation acme" in refused.text, refused.request.url
        assert said(service, "alice").text, "others are answered"
        assert service.get("/v1/erasures", **bearer("others")).status_code == 200
        listed = service.get("/v1/organisations", **bearer("rules")).json()["data"]
        assert [(each["policy"], each["state"]) for each in listed][1:] == [("acme", "erased"), ("rest", "starting")]
    with serve(tmp_path / "service", keys=KEYS) as service:
        assert service.chat("hi", headers=bearer("others")).status_code == 403, "also of one that begins anew"


def test_the_price_counts_what_an_organisations_policy_learned(tmp_path: Path) -> None:
    with serve(tmp_path / "service", keys=KEYS, policies=POLICIES) as service:
        turns = [said(service, user, key="others") for user in ("mallory", "trent")]
        used = [
            {
                "inference_id": turn.inference_id, "namespace": "other", "session_id": turn.session_id,
                "workload": turn.workload, "decided_at": turn.received_at, "value": 1, "said_by": (),
            }
            for turn in turns
        ]  # fmt: skip
        made = zstandard.ZstdCompressor().compress(codec.encoder().encode({"rewards": used, "turns": []}))
        service.services.blobs.put("manifests/acme@00000002.msgpack.zst", made)
        now = service.services.clock.now()
        with service.store.work() as work:
            first, second = (work.policies.allocate(now, PolicyName("acme")) for _ in range(2))
            work.policies.put(policy(first, created_at=now))
            learned: Any = {"manifest": "manifests/acme@00000002.msgpack.zst", "metrics": {"seconds_updating": 3.0}}
            work.policies.put(policy(second, parent=first, created_at=now, turns=2, **learned))
            for version in (first, second):
                work.releases.put(Release(version=version, cluster="local", state="live", why="", by="x", at=now))
        told = service.post("/v1/erasures/preview", {"user": "mallory"}, **bearer("others")).json()
        assert (told["updates"], told["seconds"], told["policies"]) == (1, 3.0, ["acme"])
        assert "Policy acme: The learner goes back to version acme@1 and makes 1 update again" in " ".join(told["says"])
        assert erase(service, "/v1/users/mallory", "others").json()["foreseen"] == {"updates": 1, "seconds": 3.0}
        whole = service.post("/v1/erasures/preview", {"organisation": "acme"}, **bearer("rules")).json()
        assert whole["updates"] == 0, "its own policy learns nothing again"


def test_a_whole_namespace_is_erased_and_no_other_one(service: Service) -> None:
    gone = [said(service, user, key="others") for user in ("mallory", "trent")]
    stays = said(service, "mallory")
    told = service.post("/v1/erasures/preview", {"namespace": "other"}, **bearer("rules")).json()
    assert (told["kind"], told["sessions"], told["turns"]) == ("namespace", 2, 2)
    assert erase(service, "/v1/namespaces/other").status_code == 403
    order = erase(service, "/v1/namespaces/other", "rules").json()
    assert (order["kind"], order["namespace"], order["steps"]["store"]["removed"]["turns"]) == ("namespace", "other", 2)
    with service.store.look() as view:
        left = view.turns.get_many([turn.inference_id for turn in gone])
        (asked,) = view.exclusions.in_order()
    assert [(turn.text, turn.user_id) for turn in left.values()] == [("", None)] * 2
    assert service.turn(stays.inference_id) == stays
    assert all(asked.selection.selects(turn) for turn in gone)
    assert not asked.selection.selects(stays)
