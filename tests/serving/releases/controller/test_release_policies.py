"""Releases of organisations: whatever happens to one policy's versions, those of the others know nothing of it."""

from collections.abc import Callable
from pathlib import Path

import made_events
import pytest
from memory_engine import FINE
from planted import alarm, plant
from release_world import ReleaseWorld

from core.blobs import FsspecBlobs
from core.events import ReleaseState, Topic, VersionSpan
from core.ids import BASE, Namespace, PolicyName, PolicyRef, UserHash, Version, user_hash
from core.model.probes import get_probe
from core.operations.fleet import Experiment, OrderKind
from core.settings import PolicySettings
from core.settings.policies import rings_of
from serving.releases import StoreTraffic, ensure_first
from serving.releases.canaries.rings import Members

ACME, GLOBEX = PolicyName("acme"), PolicyName("globex")
POLICIES = {name: PolicySettings(namespaces=(name,), workloads={"ask": "base"}) for name in (ACME, GLOBEX)}
ALL = (BASE, ACME, GLOBEX)


class Organisations(ReleaseWorld):
    def publish_of(self, policy: PolicyName) -> PolicyRef:
        """Publish a child of the live version, as a learner does."""
        with self.store.work() as work:
            version, parent = work.policies.allocate(self.clock.now(), policy), work.releases.live("local", policy)
        shards = self.shards_at(self.directory / f"{version}.safetensors", hash(version) % 1000)
        ref = self.weights.publish(version, shards, parent)
        made = made_events.policy(
            version, digest=ref.digest, parent=parent, weights=ref.path, created_at=self.clock.now()
        )
        with self.store.work() as work:
            work.policies.put(made)
        return version

    def release_of(self, policy: PolicyName) -> PolicyRef:
        version = self.publish_of(policy)
        self.run()
        assert self.state_of(version) == "live"
        return version

    def state_of(self, version: PolicyRef) -> str | None:
        with self.store.look() as view:
            return view.policies.state_of(version)

    def lives(self) -> dict[PolicyName, int]:
        """Return what serves of each policy, as store and engine agree."""
        with self.store.look() as view:
            found = {policy: view.releases.live("local", policy) for policy in ALL}
        assert {policy: self.engine.serving(policy) for policy in ALL} == found
        return {policy: live.version for policy, live in found.items() if live is not None}

    def order_of(self, kind: OrderKind, version: PolicyRef) -> None:
        with self.store.work() as work:
            order_id = work.orders.give("local", kind, version, "a test", "ada", self.clock.now())
        self.run()
        with self.store.look() as view:
            order = view.orders.get(order_id)
        assert order is not None
        assert order.done_at is not None
        assert order.error is None

    def serve(self, policy: PolicyName, version: int, turns: int = 60, **fields: object) -> None:
        spans = (VersionSpan(start=0, end=2, version=PolicyRef(policy, Version(version))),)
        name = Namespace("default" if policy == BASE else policy)
        plant(self, turns, version=version, namespace=name, policy_versions=spans, **fields)
        self.pass_time(1)

    def experiment_of(self, policy: PolicyName) -> Experiment | None:
        with self.store.look() as view:
            return view.experiments.running("local", policy)


@pytest.fixture
def make_organisations(make_world: Callable[..., Organisations], anchored: Path) -> Callable[..., Organisations]:
    """Return a function that makes a world where the given model serves to all three policies."""

    def make(**settings: object) -> Organisations:
        world = make_world(like=anchored, kind=Organisations, settings=settings)
        world.policies = POLICIES
        blobs = FsspecBlobs(world.directory / "blobs")
        for policy in (ACME, GLOBEX):
            ensure_first(world.store, world.log, blobs, policy, "local", world.clock)
        world.start()
        return world

    return make


@pytest.fixture
def world(make_organisations: Callable[..., Organisations]) -> Organisations:
    return make_organisations()


def test_each_policy_begins_with_the_given_model(world: Organisations) -> None:
    assert world.lives() == {BASE: 1, ACME: 1, GLOBEX: 1}
    with world.store.look() as view:
        versions = [view.policies.get(PolicyRef(policy, Version(1))) for policy in ALL]
    assert len({(version.digest, version.weights) for version in versions if version is not None}) == 1
    blobs = FsspecBlobs(world.directory / "blobs")
    assert get_probe(blobs, PolicyRef(ACME, Version(1))) == get_probe(blobs, PolicyRef(BASE, Version(1)))
    again = ensure_first(world.store, world.log, blobs, ACME, "local", world.clock)
    assert again == versions[1]
    with world.store.look() as view:
        assert len(view.releases.after(0, 1000, ACME)) == 1


def test_versions_of_one_policy_serve_it_alone(world: Organisations) -> None:
    world.release_of(ACME)
    assert world.lives() == {BASE: 1, ACME: 2, GLOBEX: 1}
    world.release_of(GLOBEX)
    world.release_of(ACME)
    assert world.lives() == {BASE: 1, ACME: 3, GLOBEX: 2}
    assert world.release() == 2
    assert world.lives() == {BASE: 2, ACME: 3, GLOBEX: 2}


def test_candidates_of_all_policies_at_once_go_live_together(world: Organisations) -> None:
    made = [world.publish_of(policy) for policy in ALL]
    world.run()
    assert [world.state_of(version) for version in made] == ["live"] * 3


def test_a_rollback_leaves_the_others_as_they_are(world: Organisations) -> None:
    for policy in ALL:
        world.release_of(policy)
    world.order_of("rollback", PolicyRef(ACME, Version(1)))
    assert world.lives() == {BASE: 2, ACME: 1, GLOBEX: 2}
    assert world.state_of(PolicyRef(ACME, Version(2))) == "rolled_back"
    assert world.state_of(PolicyRef(GLOBEX, Version(2))) == "live"


def test_a_pin_stops_one_policy_alone(world: Organisations) -> None:
    world.order_of("pin", PolicyRef(ACME, Version(1)))
    waiting = world.publish_of(ACME)
    world.release_of(GLOBEX)
    world.pass_time(2)
    assert world.state_of(waiting) == "candidate"


def test_numbers_that_are_not_finite_are_refused_while_the_others_go_on(world: Organisations) -> None:
    for policy in ALL:
        world.release_of(policy)
    world.engine.figures[3] = {**FINE, "finite": 0.0}  # the third version, of whichever policy
    broken = world.publish_of(ACME)
    world.run()
    assert world.state_of(broken) == "rejected"
    world.engine.figures.clear()
    world.release_of(GLOBEX)
    assert world.lives() == {BASE: 2, ACME: 2, GLOBEX: 3}


def test_turns_that_break_take_back_their_own_policys_version(world: Organisations) -> None:
    for policy in ALL:
        world.serve(policy, 1)
        world.release_of(policy)
    world.serve(ACME, 2, finish_reason="error")
    assert world.lives() == {BASE: 2, ACME: 1, GLOBEX: 2}
    steps: list[tuple[ReleaseState, str]] = []
    with world.store.look() as view:
        for _, release in view.releases.after(0, 1000, ACME):
            steps.append((release.state, release.by))
    assert steps[-2:] == [("rolled_back", "guard"), ("live", "guard")]


def test_turns_that_the_base_policy_answers_for_an_organisation_count_for_the_base(world: Organisations) -> None:
    world.serve(BASE, 1)
    world.release_of(BASE)
    world.release_of(ACME)
    spans = (VersionSpan(start=0, end=2, version=PolicyRef(BASE, Version(2))),)
    fields = {"namespace": Namespace(ACME), "policy_versions": spans, "workload": "ask", "finish_reason": "error"}
    plant(world, 60, version=1, workload="ask")
    world.pass_time(1)
    plant(world, 60, version=2, **fields)
    world.pass_time(1)
    assert world.lives() == {BASE: 1, ACME: 2, GLOBEX: 1}


def test_an_alarm_holds_the_releases_of_its_namespaces_policy(world: Organisations) -> None:
    found = made_events.opening("an-alarm", namespace=Namespace(ACME), workload="write")
    with world.store.work() as work:
        work.alarms.open(found)
    waiting = world.publish_of(ACME)
    world.release_of(GLOBEX)
    assert world.state_of(waiting) == "candidate"
    with world.store.work() as work:
        work.alarms.acknowledge("an-alarm", "ada", None, world.clock.now())
    world.pass_time(1)
    assert world.state_of(waiting) == "live"


def test_an_alarm_in_the_log_takes_back_its_own_policys_release(world: Organisations) -> None:
    for policy in ALL:
        world.serve(policy, 1)
        world.release_of(policy)
    world.clock.advance(1)
    world.log.append_blocking(Topic.ALARMS, [alarm(world, namespace=Namespace(ACME), workload="write")])
    world.pass_time(1)
    assert world.lives() == {BASE: 2, ACME: 1, GLOBEX: 2}


def test_a_canary_is_tried_on_its_own_policys_users(make_organisations: Callable[..., Organisations]) -> None:
    world = make_organisations(**{"release.canary.enabled": "on", "release.canary.share": 0.5})
    version = world.publish_of(ACME)
    world.run()
    assert world.state_of(version) == "canary"
    running = world.experiment_of(ACME)
    assert running is not None
    assert (running.canary, running.control) == (version, PolicyRef(ACME, Version(1)))
    traffic = StoreTraffic(world.store, "local", world.release_settings, ALL)
    users = [UserHash(f"user-{number}") for number in range(200)]
    tried = sum(traffic.assign(user, ACME).version == version for user in users)
    assert 60 < tried < 140
    assert {traffic.assign(user, policy).version for user in users for policy in (BASE, GLOBEX)} == {None}
    world.order_of("promote", version)
    assert world.lives() == {BASE: 1, ACME: 2, GLOBEX: 1}


def test_a_policy_passes_rings_of_its_own(make_world: Callable[..., Organisations], anchored: Path) -> None:
    """Acme has its pilots, and globex the common ring, of whose users the others know nothing."""
    pilots = {"name": "pilots", "users": {"acme": ["eve"]}, "min_sessions": 1, "min_duration_s": 0.0}
    early = {"name": "early", "share": 0.5, "min_sessions": 1, "min_duration_s": 0.0}
    settings = {"release.rings": [early], "release.canary.enabled": "auto", "release.canary.maturity_s": 0.0}
    world = make_world(like=anchored, kind=Organisations, settings=settings)
    own = PolicySettings.model_validate(POLICIES[ACME].model_dump() | {"rings": [pilots]})
    world.policies = POLICIES | {ACME: own}
    blobs = FsspecBlobs(world.directory / "blobs")
    for policy in (ACME, GLOBEX):
        ensure_first(world.store, world.log, blobs, policy, "local", world.clock)
    world.start()
    made = {policy: world.publish_of(policy) for policy in (ACME, GLOBEX)}
    world.run()
    assert {policy: running_rings(world, policy) for policy in made} == {ACME: ("pilots",), GLOBEX: ("early",)}
    members = {policy: Members(rings_of(world.policies, world.release_settings.rings, policy), _hash) for policy in ALL}
    traffic = StoreTraffic(world.store, "local", world.release_settings, ALL, members)
    eve, guest = _hash(Namespace(ACME), "eve"), _hash(Namespace(GLOBEX), "eve")
    assert traffic.assign(eve, ACME, Namespace(ACME)).version == made[ACME]
    assert traffic.assign(guest, ACME, Namespace(ACME)).version is None
    assert traffic.assign(eve, BASE, Namespace(ACME)).version is None
    running = world.experiment_of(ACME)
    assert running is not None
    spoken = {"arm": "canary", "propensity": 1.0, "experiment_id": running.experiment_id}
    world.serve(ACME, 2, turns=2, mean=0.5, **spoken)
    assert world.lives() == {BASE: 1, ACME: 2, GLOBEX: 1}
    assert running_rings(world, GLOBEX) == ("early",)


def running_rings(world: Organisations, policy: PolicyName) -> tuple[str, ...]:
    running = world.experiment_of(policy)
    return () if running is None else running.rings


def _hash(namespace: Namespace, user: str) -> UserHash:
    return user_hash("a key", namespace, user)
