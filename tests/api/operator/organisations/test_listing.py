"""How organisations and clusters stand, over HTTP: to each key its own policy, to the operator all."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve
from made_events import opening

from core.clock import ManualClock
from core.errors import Unavailable
from core.events import PolicyVersion, Release
from core.ids import BASE, Namespace, PolicyName, PolicyRef, Version, base_ref
from core.operations.fleet import Experiment, Switches
from core.operations.quotas import Account, Use, month_of
from core.records.clusters import ClusterStanding, ClusterStatus
from core.settings import PolicySettings, QuotaSettings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CLOCK = ManualClock(NOW + timedelta(days=1))  # the service's too: a month must not end while a test runs
POLICIES = {
    "acme": PolicySettings(namespaces=("acme", "acme-eu"), workloads={"autocomplete": "base"}),
    "beta": PolicySettings(namespaces=("beta",)),
}
QUOTAS = QuotaSettings.model_validate({"namespaces": {"acme": {"tokens_per_month": 1000}}})
KEYS = (
    {"key": "key-of-acme", "namespace": "acme", "scopes": ("read",)},
    {"key": "key-that-rules", "namespace": "default", "scopes": ("admin",)},
)


class Clusters:
    """What the bucket says, until it cannot be reached."""

    def __init__(self) -> None:
        self.said: Sequence[ClusterStanding] = ()
        self.fault = ""

    def __call__(self) -> Sequence[ClusterStanding]:
        if self.fault:
            raise Unavailable(self.fault)
        return self.said


CLUSTERS = Clusters()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    CLUSTERS.said, CLUSTERS.fault = (), ""
    with serve(tmp_path / "s", keys=KEYS, policies=POLICIES, quotas=QUOTAS, clusters=CLUSTERS, clock=CLOCK) as service:
        with service.store.work() as work:
            for name in (BASE, PolicyName("acme"), PolicyName("beta")):
                ref = work.policies.allocate(NOW, name)
                fields: Any = {"policy": name, "digest": "d", "parent": None, "manifest": None, "weights": "w"}
                work.policies.put(PolicyVersion(version=ref, created_at=NOW, **fields))
                work.releases.put(Release(version=ref, cluster="local", state="live", why="", by="gate", at=NOW))
        yield service


def asked(service: Service, path: str, key: str = "that-rules") -> Any:
    return service.get(path, authorization=f"Bearer key-{key}").json()


def test_a_key_sees_its_own_policy_and_the_operator_sees_all(service: Service) -> None:
    own = asked(service, "/v1/organisations", "of-acme")["data"]
    assert [(each["policy"], each["live"], each["namespaces"]) for each in own] == [
        ("acme", "acme@1", ["acme", "acme-eu"])
    ]
    assert own[0]["workloads"] == {"autocomplete": "base"}
    assert [each["policy"] for each in asked(service, "/v1/organisations")["data"]] == ["base", "acme", "beta"]


def test_state_canary_quota_and_alarms_are_that_policys(service: Service) -> None:
    acme = PolicyRef(PolicyName("acme"), Version(1))
    month = month_of(CLOCK.now())
    with service.store.work() as work:
        running: Any = {"canary": acme, "control": acme, "share": 0.2, "salt": "s", "started_at": NOW}
        work.experiments.put(Experiment(experiment_id="e", cluster="local", **running))
        work.spending.add(month, {Account("namespace", "acme", "acme"): Use(3, 700)})
        work.spending.add(month, {Account("user", "acme", "ada"): Use(9, 9)})
        work.alarms.open(opening("one", namespace=Namespace("acme-eu"), workload="chat", severity="warning"))
        work.alarms.open(opening("two", namespace=Namespace("acme"), workload="autocomplete"))
    base, own, other = asked(service, "/v1/organisations")["data"]
    assert (own["state"], own["canary"]["canary"], own["versions"]) == ("canary", "acme@1", {"live": 1})
    assert own["month"] == {"requests": 3, "tokens": 700, "requests_per_month": None, "tokens_per_month": 1000}
    assert own["alarms"] == {"open": 1, "critical": 0, "hold_releases": 0}
    assert base["alarms"]["open"] == 1, "of the workload that it answers"
    assert (other["state"], other["month"], other["alarms"]["open"]) == ("steady", None, 0)
    with service.store.work() as work:
        work.fleet.put_switches("local", Switches(pinned=acme), PolicyName("acme"))
    assert [each["state"] for each in asked(service, "/v1/organisations")["data"]][1:] == ["pinned", "steady"]


def test_clusters_are_listed_with_how_far_behind_each_is(service: Service) -> None:
    assert asked(service, "/v1/clusters") == {"object": "list", "this": "local", "unreachable": None, "data": []}
    at = CLOCK.now() - timedelta(seconds=90)
    edge = ClusterStatus(cluster="east", live=base_ref(3), followed=3, unsent=7, at=at)
    home = ClusterStatus(cluster="west", role="home", live=base_ref(5), followed=5, unsent=0, at=at)
    CLUSTERS.said = (ClusterStanding(edge, 2), ClusterStanding(home, 0))
    first, second = asked(service, "/v1/clusters")["data"]
    assert (first["cluster"], first["role"], first["live"], first["behind"]) == ("west", "home", 5, 0)
    assert (second["live"], second["behind"], second["unsent"]) == (3, 2, 7)
    assert 89 < second["seen_s_ago"] < 120
    CLUSTERS.fault = "clusters.url: the bucket cannot be reached"
    assert asked(service, "/v1/clusters")["unreachable"] == CLUSTERS.fault
    assert service.get("/v1/clusters").status_code == 401
