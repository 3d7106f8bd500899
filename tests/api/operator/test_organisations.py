"""An organisation is answered by its own policy, and its keys see and order that one alone."""

import itertools
from collections.abc import Iterator

import pytest
from api_harness import Service, serve
from made_events import opening, policy

from core.clock import SystemClock
from core.events import Release
from core.ids import BASE, Namespace, PolicyName, PolicyRef, Version, base_ref
from core.settings import PolicySettings

OF = {"acme": "acme", "globex": "globex", "nobody": BASE}
"""The policy of each namespace."""
POLICIES = {
    "acme": PolicySettings(namespaces=("acme",), workloads={"autocomplete": "base"}),
    "globex": PolicySettings(namespaces=("globex",)),
}
PAIRS = [(one, other) for one, other in itertools.product(OF, OF) if one != other]
LISTS = ("policies", "releases", "experiments", "fleet", "status")


def bearer(namespace: str, scope: str = "operate") -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{namespace}-to-{scope}"}


def version_of(name: str) -> PolicyRef:
    return PolicyRef(PolicyName(name), Version(2))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service where each policy has two versions, the second live, and an alarm that holds its releases."""
    keys = [
        {"key": f"key-of-{namespace}-to-{scope}", "namespace": namespace, "scopes": ["chat", "read", scope]}
        for namespace, scope in itertools.product(OF, ("operate", "admin"))
    ]
    now, waits = SystemClock().now(), {"order_wait_s": 0.0}
    with serve(tmp_path_factory.mktemp("orgs") / "s", keys=keys, policies=POLICIES, advanced=waits) as service:
        for namespace, name in OF.items():
            with service.store.work() as work:
                for _ in range(2):
                    ref = work.policies.allocate(now, PolicyName(name))
                    work.policies.put(policy(ref, created_at=now))
                    work.releases.put(Release(version=ref, cluster="local", state="live", why="", by="gate", at=now))
                work.alarms.open(opening(f"alarm-of-{namespace}", namespace=Namespace(namespace), workload="chat"))
        yield service


@pytest.mark.parametrize(("namespace", "name"), OF.items())
def test_a_request_is_answered_by_its_namespaces_policy(service: Service, namespace: str, name: str) -> None:
    answer = service.chat("hi", headers=bearer(namespace))
    assert service.policy.requests[-1].policy == name
    turn = service.turn(answer.headers["x-onward-inference-id"])
    assert [span.version.policy for span in turn.policy_versions] == [name]
    assert turn.policy == (service.services.model_name if name == BASE else name)
    assert (service.traffic.policies[-1], service.traffic.namespaces[-1]) == (name, namespace)


def test_a_workload_may_be_given_to_another_policy(service: Service) -> None:
    service.chat("hi", headers=bearer("acme") | {"x-onward-workload": "autocomplete"})
    assert service.policy.requests[-1].policy == BASE


def test_no_policy_goes_on_from_anothers_tokens(service: Service) -> None:
    """The answer of another policy, in one namespace's session, is read as its words and rendered afresh."""
    said = service.chat("where to?", headers=bearer("acme"), session_id="moved").json()["choices"][0]["message"]
    history = [{"role": "user", "content": "where to?"}, said, {"role": "user", "content": "and then?"}]
    first = service.policy.requests[-1]
    before = (*first.prompt_token_ids, *service.policy.default.token_ids)
    for workload, is_continued in (("autocomplete", False), ("chat", True)):
        headers = bearer("acme") | {"x-onward-workload": workload}
        answer = service.chat(*history, headers=headers, session_id="moved")
        asked = service.policy.requests[-1]
        turn = service.turn(answer.headers["x-onward-inference-id"])
        assert (asked.prompt_token_ids[: len(before)] == before) == is_continued, workload
        assert turn.turn_index == 1
        assert turn.parent_id is not None, "whose answer it follows is known all the same"


@pytest.mark.parametrize(("namespace", "other"), PAIRS)
@pytest.mark.parametrize("listed", LISTS)
def test_a_key_sees_its_own_policy_and_no_other(service: Service, namespace: str, other: str, listed: str) -> None:
    own = service.get(f"/v1/{listed}", **bearer(namespace))
    assert own.status_code == 200
    seen = str(own.json())
    assert f"alarm-of-{other}" not in seen
    assert OF[other] == BASE or f"{OF[other]}@" not in seen
    if listed in ("policies", "releases"):
        assert f"alarm-of-{namespace}" in seen
        versions = {release["version"] for release in own.json()["data"]}
        assert versions == {1, 2} if OF[namespace] == BASE else {f"{OF[namespace]}@1", f"{OF[namespace]}@2"}
    refused = service.get(f"/v1/{listed}?policy={OF[other]}", **bearer(namespace))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_policy")
    assert service.get(f"/v1/{listed}?policy={OF[other]}", **bearer(namespace, "admin")).status_code == 200


@pytest.mark.parametrize(("namespace", "other"), PAIRS)
def test_a_key_orders_its_own_policy_and_no_other(service: Service, namespace: str, other: str) -> None:
    path = f"/v1/policies/{version_of(OF[other])}/hold"
    refused = service.post(path, {"why": "a test"}, **bearer(namespace))
    assert refused.status_code == 404, "it is as if there were none"
    assert service.post(path, {"why": "a test"}, **bearer(namespace, "admin")).status_code in (200, 202)
    assert service.get(f"/v1/policies/{version_of(OF[other])}/rollback", **bearer(namespace)).status_code == 404
    own = service.post(f"/v1/policies/{version_of(OF[namespace])}/hold", {"why": "a test"}, **bearer(namespace))
    assert own.status_code == (403 if OF[namespace] == BASE else 202), "the base policy is everybody's"


def test_an_order_stands_in_the_trail_of_those_whom_the_policy_is_of(service: Service) -> None:
    others = next(namespace for namespace in OF if namespace != "acme")
    for namespace, scope in (("acme", "operate"), (others, "admin")):
        path = f"/v1/policies/{version_of('acme')}/pin"
        assert service.post(path, {"why": "for acme"}, **bearer(namespace, scope)).status_code in (200, 202)
        with service.store.look() as view:
            assert view.audit.newest(None, 1 << 53, 1)[0].namespace == "acme"
    service.post("/v1/policies/2/pin", {"why": "the base's"}, **bearer("acme", "admin"))
    with service.store.look() as view:
        assert view.audit.newest(None, 1 << 53, 1)[0].namespace == "", "everybody's"


def test_orders_stand_under_their_policy(service: Service) -> None:
    service.post("/v1/policies/acme@2/pin", {"why": "for acme"}, **bearer("acme"))
    with service.store.look() as view:
        given = [(order.version, order.why) for order in view.orders.unfinished("local", PolicyName("acme"))]
        assert (version_of("acme"), "for acme") in given
        assert "for acme" not in {order.why for order in view.orders.newest("local", 100)}
    assert service.post("/v1/policies/acme@02/pin", {"why": "no version"}, **bearer("acme")).status_code == 404
    assert service.post("/v1/policies/2/pin", {"why": "the base's"}, **bearer("acme")).status_code == 404
    assert base_ref(2) != version_of("acme")
