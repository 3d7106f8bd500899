"""What users and sessions consent to is kept, heeded by what comes, and takes back what was."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import MODEL, SPEC, Service, serve, serve_replicas, wait_for
from stepping import step

from api.access.consents.kept import KeptConsents
from api.access.consents.taking_back import _Queue, _Withdrawal
from api.http import background
from api.turns.intake import PROCESSING_PURPOSE as PURPOSE
from core.clock import SystemClock
from core.ids import CONSENT, InferenceId, Namespace
from core.operations.audit import AuditEntry
from core.operations.consents import Consent, ConsentSubject, KeptConsent
from core.reward_spec import RewardSpec
from core.reward_spec.roles import CONSENT_WITHDRAWN
from core.settings import NamespacePrivacySettings, PrivacySettings, ScoringSettings
from core.store import open_sqlite
from core.store.work import Work
from scoring.stage import Scorer

KEYS: Any = (
    {"key": "key-of-a-plugin", "namespace": "team", "name": "plugin", "scopes": ("chat", "feedback")},
    {"key": "key-of-ada", "namespace": "team", "name": "adas", "user": "ada"},
    {"key": "key-of-others", "namespace": "others", "name": "others", "scopes": ("chat", "feedback")},
    {"key": "key-of-a-reader", "namespace": "team", "name": "reader", "scopes": ("chat", "read", "admin")},
)


def bearer(key: str = "key-of-a-plugin") -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.access.consents.kept.LOOK_S", 0.05)
    monkeypatch.setattr("api.access.consents.taking_back.LOOK_S", 0.05)
    monkeypatch.setattr("api.access.consents.taking_back.SETTLED_S", 0.0)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", keys=KEYS) as service:
        yield service


def said(service: Service, key: str = "key-of-a-plugin", **fields: Any) -> dict[str, Any]:
    answer = service.post("/v1/consent", fields, **bearer(key))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def learns(service: Service, key: str = "key-of-a-plugin", headers: dict[str, str] | None = None, **fields: Any) -> Any:
    answer = service.chat("hi", headers={**bearer(key), **(headers or {})}, **fields)
    assert answer.status_code == 200, answer.text
    onward = answer.json()["onward"]
    return onward["learn"], "not_stored" not in onward["untrainable_reasons"]


def turn_of(service: Service, **fields: Any) -> str:
    answer = service.chat("hi", headers=bearer(), **fields)
    assert answer.status_code == 200, answer.text
    inference_id: str = answer.json()["onward"]["inference_id"]
    service.turn(inference_id)
    return inference_id


def withdrawn_turns(service: Service) -> set[str]:
    return {str(each.inference_id) for each in service.outcomes() if each.name == CONSENT_WITHDRAWN}


# ------------------------------------------------------------------------------------------ what comes


def test_what_a_user_said_is_kept_and_heeded_until_it_is_changed(service: Service) -> None:
    assert service.get("/v1/consent?user=ada", **bearer()).json()["learn"] is True
    assert said(service, user="ada", learn=False)["changed_by"] == "plugin"
    assert learns(service, user="ada") == (False, True)
    assert learns(service, user="bob") == learns(service) == (True, True)
    assert learns(service, "key-of-others", user="ada") == (True, True), "the same name of another namespace"
    shown = service.get("/v1/consent?user=ada", **bearer()).json()
    assert (shown["learn"], shown["store"], shown["kind"]) == (False, True, "user")
    assert "stays in their weights" in shown["says"]
    with service.store.look() as view:
        found = view.audit.newest("team", 1 << 40, 9)
    deeds = [msgspec.json.decode(entry.record, type=AuditEntry) for entry in found]
    assert [(deed.kind, deed.objects, len(deed.users)) for deed in deeds] == [
        ("change", {"learn": "False", "store": "True"}, 1),
        ("read", {}, 1),
    ]
    assert said(service, user="ada", learn=True)["learn_since"] is not None
    assert learns(service, user="ada") == (True, True)


def test_a_header_may_allow_less_and_never_more(service: Service) -> None:
    said(service, user="ada", store=False)
    loud = {"x-onward-learn": "true", "x-onward-store": "true"}
    assert learns(service, user="ada", headers=loud) == (False, False)
    assert learns(service, user="bob", headers={"x-onward-learn": "false"}) == (False, True)
    turn = service.turn(service.chat("a secret", headers=bearer(), user="ada").json()["onward"]["inference_id"])
    assert turn.unstored is not None
    assert turn.messages == ()


def test_a_session_is_heeded_whoever_speaks_in_it(service: Service) -> None:
    turn_of(service, session_id="s1", user="ada")
    said(service, session_id="s1", learn=False)
    assert learns(service, session_id="s1", user="bob") == (False, True)
    assert learns(service, session_id="s2", user="bob") == (True, True)


def test_every_protocol_and_every_choice_heeds_it(service: Service) -> None:
    said(service, user="ada", learn=False)
    service.post("/v1/completions", {"model": MODEL, "prompt": "x", "user": "ada"}, **bearer())
    asked = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    service.post("/v1/messages", asked, **bearer("key-of-ada"))
    service.chat("hi", headers=bearer(), user="ada", n=2)
    wait_for(lambda: len(service.all_turns()) == 4, "the turns")
    assert [turn.learn for turn in service.all_turns()] == [False] * 4


def test_another_replica_hears_of_it(tmp_path: Path) -> None:
    with serve_replicas(tmp_path / "service", 2, keys=KEYS) as (first, second):
        assert learns(second, user="ada") == (True, True)
        said(first, user="bob", learn=False)
        said(first, user="ada", learn=False)
        wait_for(lambda: learns(second, user="ada") == (False, True), "what the first was told")
        assert learns(second, user="bob") == (False, True)


def test_while_the_store_is_away_who_is_not_known_allows_nothing(service: Service) -> None:
    """Where nobody ever said anything there is nothing to ask."""
    service.store.broken = True
    assert learns(service, user="cy") == (True, True)
    service.store.broken = False
    said(service, user="bob", learn=False)
    assert learns(service, user="ada", session_id="s1") == (True, True)
    service.store.broken = True
    assert learns(service, user="ada", session_id="s1") == (True, True), "what was heard holds"
    assert learns(service, user="dee") == (False, False)
    service.store.broken = False
    assert learns(service, user="dee") == (True, True)


def test_whoever_is_forgotten_while_another_is_looked_up_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.access.consents.kept._KNOWN", 2)
    first, second, *others = (ConsentSubject(Namespace("team"), "user", name) for name in "abcd")
    store, heard = open_sqlite(tmp_path / "store.db"), threading.Event()
    with store.work() as work:
        work.consents.put(first, Consent(learn=False), takes_back=False)

    async def ask() -> Consent:
        async with KeptConsents(store) as consents:
            look = consents._ask

            def look_late(subjects: list[ConsentSubject]) -> dict[ConsentSubject, Consent]:
                assert second not in subjects or heard.wait(60)
                return look(subjects)

            monkeypatch.setattr(consents, "_ask", look_late)
            await consents.of([first])
            waits = asyncio.create_task(consents.of([first, second]))
            await asyncio.sleep(0)  # it has begun to look
            await consents.of(others)
            heard.set()
            return await waits

    assert asyncio.run(ask()).learn is False
    store.close()


# ------------------------------------------------------------------------------------------ what was


def test_what_was_rewarded_is_void_and_stays_so_when_consent_is_given_again(service: Service) -> None:
    """From HTTP to the rewards, and to what the learner is given."""
    spec = RewardSpec.model_validate(SPEC.model_dump(mode="json", exclude_unset=True))
    turns = {user: turn_of(service, user=user, session_id=f"of-{user}") for user in ("ada", "bob")}
    for turn in turns.values():
        told = {"inference_id": turn, "metric_name": "accepted", "value": True}
        assert service.post("/v1/feedback", told, **bearer()).status_code == 200
    store, team = service.store._store, Namespace("team")
    scorer = Scorer(service.log._log, store, spec, ScoringSettings(tick_s=1e-6), SystemClock())

    def rewards() -> dict[str, list[bool]]:
        step(scorer)
        with store.look() as view:
            found = view.rewards.after(team, 0, 1000)
        return {
            user: [reward.void for _, reward in found if reward.inference_id == turn] for user, turn in turns.items()
        }

    def taught() -> dict[str, bool]:
        with store.look() as view:
            heeded = view.consents.heeded(view.turns.get_many(map(InferenceId, turns.values())))
        return {user: heeded[InferenceId(turn)].learn for user, turn in turns.items()}

    try:
        wait_for(lambda: rewards() == {"ada": [False], "bob": [False]}, "the first rewards")
        said(service, user="ada", learn=False)
        assert taught() == {"ada": False, "bob": True}
        wait_for(lambda: rewards() == {"ada": [False, True], "bob": [False]}, "the taking back")
        said(service, user="ada", learn=True)
        assert taught() == {"ada": False, "bob": True}
        again = turn_of(service, user="ada", session_id="of-ada")
        told = {"inference_id": turns["ada"], "metric_name": "accepted", "value": False}
        assert service.post("/v1/feedback", told, **bearer()).status_code == 200
        said(service, user="ada", learn=False)
        wait_for(lambda: withdrawn_turns(service) == {turns["ada"], again}, "what was said meanwhile")
        assert rewards() == {"ada": [False, True], "bob": [False]}
    finally:
        scorer.close()


def test_withdrawals_for_many_users_keep_nobody_waiting(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.access.consents.taking_back.SETTLED_S", 1e6)
    monkeypatch.setattr("api.access.consents.taking_back._WITHDRAWALS", 3)
    first, second = turn_of(service, user="ada"), turn_of(service, user="bob")
    for number in range(10):
        said(service, "key-of-others", user=f"u{number}", learn=False)
    said(service, user="ada", learn=False)
    wait_for(lambda: withdrawn_turns(service) == {first}, "the taking back")
    for number in range(10):
        said(service, user=f"u{number}", learn=False)
    said(service, user="bob", learn=False)
    wait_for(lambda: withdrawn_turns(service) == {first, second}, "the taking back in the same namespace")


def test_namespaces_take_turns() -> None:
    queue = _Queue()
    names = [*(("others", f"u{number}") for number in range(9)), ("team", "ada"), ("team", "bob")]
    for revision, (namespace, name) in enumerate(names):
        queue.put(_withdrawal(namespace, name, revision), due_s=2.0)
    assert queue.take(1.9, 9) == []
    assert [each.kept.subject.name for each in queue.take(2.0, 5)] == ["u0", "ada", "u1", "bob", "u2"]
    queue.put(_withdrawal("others", "u4", revision=99), due_s=3.0)
    assert [each.kept.subject.name for each in queue.take(2.0, 9)] == ["u3", "u5", "u6", "u7", "u8"]
    assert (queue.next_due_s(), len(queue)) == (3.0, 1)


def _withdrawal(namespace: str, name: str, revision: int) -> _Withdrawal:
    subject = ConsentSubject(Namespace(namespace), "user", name)
    return _Withdrawal(KeptConsent(subject=subject, consent=Consent(learn=False), revision=revision), wait_s=1.0)


def test_what_another_process_left_undone_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, serve(tmp_path / "service", keys=KEYS) as service:
        patch.setattr("api.access.consents.taking_back.TakingBack.take_back", _dies)
        first = turn_of(service, user="ada", session_id="s1")
        said(service, user="ada", learn=False)
        said(service, user="ada", learn=True)
        assert withdrawn_turns(service) == set()
    with serve(tmp_path / "service", keys=KEYS) as service:
        wait_for(lambda: withdrawn_turns(service) == {first}, "what was left undone")
        wait_for(lambda: _is_done(service), "the note that it is done")


async def _dies(_: object) -> None:
    """Do nothing, as a process that died would."""


def _is_done(service: Service) -> bool:
    with service.store.look() as view:
        return not view.consents.to_take_back(0, 9)


def test_nobody_takes_back_the_services_own_word(service: Service) -> None:
    turn = turn_of(service, user="ada", session_id="s1")
    said(service, session_id="s1", learn=False)
    wait_for(lambda: withdrawn_turns(service) == {turn})
    ours = f"{CONSENT}{turn}"
    for key in ("key-of-a-plugin", "key-of-a-reader"):
        refused = service.delete(f"/v1/feedback/{ours}", **bearer(key))
        assert refused.status_code in (403, 404), refused.text
    told = {"inference_id": turn, "metric_name": CONSENT_WITHDRAWN, "value": False}
    assert service.post("/v1/feedback", told, **bearer()).status_code == 400
    wait_for(lambda: _is_done(service), "the end of the taking back")
    with pytest.raises(ValueError, match="the service says this itself"):
        RewardSpec.model_validate(
            {
                "outcomes": {
                    "accepted": {"type": "boolean", "weight": 1},
                    CONSENT_WITHDRAWN: {"type": "boolean", "role": "void"},
                }
            }
        )


# ------------------------------------------------------------------------------------------ who may


@pytest.mark.parametrize(
    ("key", "fields", "status", "param"),
    [
        ("key-of-a-plugin", {"learn": False}, 400, "user"),
        ("key-of-a-plugin", {"user": "ada"}, 400, "learn"),
        ("key-of-a-plugin", {"user": "ada", "learn": None}, 400, "learn"),
        ("key-of-a-plugin", {"user": "ada", "learn": "no"}, 400, "learn"),
        ("key-of-a-plugin", {"user": "ada", "learn": True, "store": False}, 400, "learn"),
        ("key-of-a-plugin", {"user": "ada", "session_id": "s1", "learn": False}, 400, "session_id"),
        ("key-of-a-plugin", {"user": "ada", "learn": False, "why": "x"}, 400, "why"),
        ("key-of-a-plugin", {"session_id": "a session", "learn": False}, 400, "session_id"),
        ("key-of-a-plugin", {"session_id": "unknown", "learn": False}, 404, "session_id"),
        ("key-of-others", {"session_id": "s1", "learn": False}, 404, "session_id"),
        ("key-of-ada", {"session_id": "s1", "learn": False}, 404, "session_id"),
        ("key-of-ada", {"user": "bob", "learn": False}, 403, "user"),
    ],
)
def test_what_is_not_hers_or_not_clear_is_refused(
    service: Service, key: str, fields: dict[str, Any], status: int, param: str
) -> None:
    turn_of(service, user="bob", session_id="s1")
    refused = service.post("/v1/consent", fields, **bearer(key))
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text


def test_a_key_for_one_user_speaks_for_her_and_her_sessions(service: Service) -> None:
    assert learns(service, "key-of-ada", session_id="s1") == (True, True)
    wait_for(lambda: len(service.all_turns()) == 1)
    assert said(service, "key-of-ada", session_id="s1", learn=False)["kind"] == "session"
    assert learns(service, "key-of-ada", session_id="s1") == (False, True)
    assert said(service, "key-of-ada", store=False)["kind"] == "user"
    assert learns(service, user="ada") == (False, False)
    refused = service.post("/v1/consent", {"learn": True}, **bearer("key-of-ada"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "learn"), "nothing is stored"
    assert service.get("/v1/consent?user=bob", **bearer("key-of-ada")).status_code == 403
    assert service.post("/v1/consent", {"user": "x", "learn": True}, **bearer("key-of-a-reader")).status_code == 200


# ------------------------------------------------------------------------------------------ what for


def test_a_turn_gives_a_purpose_that_its_namespace_states(tmp_path: Path) -> None:
    stated = {"coding": "Completing code in the editor."}
    privacy = PrivacySettings(namespaces={"team": NamespacePrivacySettings(purposes=stated)})
    header = {"x-onward-processing-purpose": "coding"}
    with serve(tmp_path / "service", keys=KEYS, privacy=privacy) as service:
        for fields in ({"headers": {**bearer(), **header}}, {"headers": bearer(), "metadata": {PURPOSE: "coding"}}):
            answer = service.chat("hi", **fields)
            assert service.turn(answer.json()["onward"]["inference_id"]).tags == {PURPOSE: "coding"}
        assert service.turn(turn_of(service)).tags == {}, "none was given"
        for fields in (
            {"headers": bearer(), "metadata": {PURPOSE: "selling"}},
            {"headers": {**bearer(), **header}, "metadata": {PURPOSE: "selling"}},
            {"headers": {**bearer("key-of-others"), **header}},
        ):
            refused = service.chat("hi", **fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"metadata.{PURPOSE}")
        assert service.chat("hi", headers=bearer("key-of-others"), metadata={PURPOSE: "any"}).status_code == 200
        assert service.get("/v1/consent?user=ada", **bearer()).json()["purposes"] == stated
        assert service.get("/v1/consent?user=ada", **bearer("key-of-others")).json()["purposes"] == {}


def test_slow_writes_of_one_callers_consents_leave_threads_to_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun, work = threading.Event(), list[str](), service.store.work

    def slow_work() -> AbstractContextManager[Work]:
        begun.append("a write")
        gate.wait()
        return work()

    half, many = background._THREADS // 2, 2 * background._THREADS
    with ThreadPoolExecutor(many) as clients, monkeypatch.context() as slow:
        slow.setattr(service.store, "work", slow_work)
        try:
            writes = [clients.submit(said, service, user=f"user-{number}", learn=False) for number in range(many)]
            wait_for(lambda: len(begun) >= half, "half of the threads")
            looks = [service.get("/v1/policies", **bearer("key-of-a-reader")).status_code for _ in range(10)]
            assert len(begun) <= half + 2, "the background may write, too: the trail, and the count of quotas"
        finally:
            gate.set()
        assert looks == [200] * 10
        assert not any(write.result()["learn"] for write in writes)
