"""A small crowd's undecided canary: its lane follows the learner, and the others keep what was certified."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from planted import reward, turn
from release_world import ReleaseWorld

from core.events import Completion, GateVerdict, Topic
from core.ids import UserHash, base_ref
from core.operations.fleet import Experiment
from learner.versions.lineage import Lineage
from serving.releases.canaries.crowd import certified
from serving.releases.canaries.evidence import ArmStatistics
from serving.releases.canaries.traffic import StoreTraffic

MakeWorld = Callable[..., ReleaseWorld]
USERS, MAX_LEAD = 20, 2
FOLLOW_S, MATURITY_S = 600.0, 10.0
SETTINGS = {
    "release.canary.enabled": "on",
    "release.canary.maturity_s": MATURITY_S,
    "release.canary.follow_s": FOLLOW_S,
    "release.canary.horizon_turns": 240,
}


class Service:
    """Twenty users whose every feedback makes a version, as far as the learner's rule lets it."""

    def __init__(self, world: ReleaseWorld) -> None:
        self.world = world
        self.learner = Lineage([base_ref(1)])
        self._heard = 0
        self._noise = random.Random(1)

    def learn(self) -> int | None:
        """Return the version that the next feedback makes; None where the learner waits."""
        with self.world.store.look() as view:
            said = view.releases.after(self._heard, 1000)
        for self._heard, release in said:
            self.learner.follow(release)
        back = self.learner.must_resume_from()
        if back is not None:
            kept = [each for each in self.learner.versions if each <= back]
            self.learner.resumed_from(back, [each for each in kept if each < back])
        if not self.learner.may_train(MAX_LEAD):
            return None
        assert self.learner.newest is not None
        version = self.world.publish(self.learner.newest.version)
        self.learner.extend(base_ref(version))
        return version

    def talk(self, canary: float, live: float, rounds: int = 1) -> None:
        """Let everybody have turns in both arms, with these mean rewards."""
        for arm, version, mean in (("canary", self.running.canary, canary), ("live", self.running.control, live)):
            turns = self.turns(rounds, arm, version)
            rewards = [reward(self.world, each, mean + self._noise.choice((-0.75, 0.75))) for each in turns]
            self.world.log.append_blocking(Topic.TURNS, turns)
            self.world.log.append_blocking(Topic.REWARDS, rewards)
        self.world.pass_time(2 * MATURITY_S, MATURITY_S)

    def turns(self, rounds: int, arm: str, version: int, **fields: Any) -> list[Completion]:
        """Return so many turns of each user in the running experiment."""
        fields |= {"arm": arm, "version": version, "experiment_id": self.running.experiment_id}
        users = [UserHash(f"user-{user}") for _ in range(rounds) for user in range(USERS)]
        return [turn(self.world, user, user_id=user, **fields) for user in users]

    def later(self) -> None:
        self.world.pass_time(FOLLOW_S, FOLLOW_S / 2)

    @property
    def running(self) -> Experiment:
        return self.world.experiments()[0]

    def serves(self) -> dict[str, int | None]:
        """Return the version that each arm's users get."""
        traffic = StoreTraffic(self.world.store, "local", self.world.release_settings, self.world.clock)
        found = [traffic.assign(f"user-{user}") for user in range(USERS)]
        return {each.arm: None if each.version is None else each.version.version for each in found}


@pytest.fixture
def service(start_world: MakeWorld) -> Service:
    """Return a service whose canary, version 2, has begun."""
    service = Service(start_world(settings=SETTINGS))
    assert service.learn() == 2
    service.world.run()
    assert service.world.states() == {1: "live", 2: "canary"}
    return service


def follow_to(service: Service, version: int) -> None:
    """Let feedback make versions, and the lane follow, up to one."""
    while service.running.canary < version:
        service.learn()
        service.later()


def test_while_a_canary_is_undecided_feedback_makes_versions_and_its_lane_serves_them(service: Service) -> None:
    experiment_id = service.running.experiment_id
    for version in (3, 4, 5):
        service.talk(0.5, 0.5)
        assert service.learn() == version
        service.world.run()
        assert service.serves()["canary"] == version - 1, "the lane follows at its pace"
        service.later()
        assert service.serves() == {"canary": version, "live": None}
    assert service.world.live == 1
    assert service.world.states() == {1: "live"} | dict.fromkeys(range(2, 6), "canary")
    assert service.world.why(5) == "passed the sanity gate; follows version 4 in its lane"
    assert (service.running.experiment_id, service.running.versions) == (experiment_id, (2, 3, 4, 5))
    assert [service.learn() for _ in range(3)] == [6, 7, None], "no gate has passed these two yet"
    assert service.world.has_weights(3)


def test_what_is_certified_is_the_middle_and_the_rest_goes_on_against_it(service: Service) -> None:
    for version in (3, 4, 5):
        service.talk(0.5, 0.5, rounds=3)
        follow_to(service, version)
        service.world.replace_controller()
    service.talk(0.5, 0.5, rounds=3)
    service.later()
    now, before = service.world.experiments()
    assert (before.verdict, before.certified, before.figures["turns"]) == ("promote", 3, 240)
    assert service.world.live == 3
    assert service.world.states() == {1: "retired", 2: "superseded", 3: "live", 4: "superseded", 5: "canary"}
    assert "of its lane's versions 2 to 5 the one they speak for" in service.world.why(3)
    assert (now.canary, now.control, now.lane) == (5, 3, ())
    assert service.learn() == 6, "the learner goes on from the lane's newest"
    assert service.learner.versions[-2] == base_ref(5)
    service.world.check_chain()


def test_decided_badly_everything_goes_back_to_what_was_certified(service: Service) -> None:
    service.talk(0.2, 0.5)
    follow_to(service, 4)
    service.learn()
    service.talk(-0.5, 0.5, rounds=4)
    assert service.running.verdict == "rollback"
    assert service.world.states() == {1: "live", **dict.fromkeys((2, 3, 4), "rolled_back"), 5: "rejected"}
    assert service.world.check_one_lives() == 1
    assert (service.learn(), service.learner.versions) == (6, [base_ref(1), base_ref(6)])


def test_an_operator_may_certify_a_version_of_the_lane_or_take_all_of_it_back(service: Service) -> None:
    follow_to(service, 3)
    service.world.carry_out("promote", 3)
    assert service.world.states() == {1: "retired", 2: "superseded", 3: "live"}
    service.learn()
    service.world.run()
    follow_to(service, 5)
    service.world.carry_out("hold", 4)
    service.learn()
    service.later()
    assert service.running.canary == 5, "a lane of which something is held stays as it is"
    service.world.carry_out("rollback", 3)
    assert service.world.states()[4] == service.world.states()[5] == "rolled_back"
    assert service.world.check_one_lives() == 3


def test_of_two_engines_one_follows_and_the_other_keeps_what_was_certified(start_world: MakeWorld) -> None:
    service = Service(start_world("a", "b", settings=SETTINGS))
    assert service.learn() == 2
    service.world.run()
    follow_to(service, 4)
    lanes = {target.lane: service.world.engines[name].serves for name, target in service.world.targets().items()}
    assert lanes == {"canary": 4, "live": 1}


def test_a_proposed_version_waits_for_the_lane_and_is_next(service: Service) -> None:
    follow_to(service, 3)
    proposed = service.world.publish(1, verdict=GateVerdict(action="pass", why="cases: no worse"))
    follow_to(service, 5)
    assert service.world.states()[proposed] == "candidate"
    service.world.carry_out("promote", 3)
    assert service.world.states() == {1: "retired", 2: "superseded", 3: "live", 4: "canary", 5: "superseded"}


def test_a_follower_that_the_gate_refuses_leaves_the_lane_as_it_is(service: Service) -> None:
    follow_to(service, 3)
    service.world.engine.unfit = {4}
    assert service.learn() == 4
    service.later()
    assert service.world.states() == {1: "live", 2: "canary", 3: "canary", 4: "rejected"}
    assert service.learn() == 5
    assert service.learner.versions == [base_ref(number) for number in (1, 2, 3, 5)]


def test_a_fault_of_the_newest_version_is_not_hidden_by_those_before(service: Service) -> None:
    service.talk(0.5, 0.5, rounds=11)
    follow_to(service, 3)
    service.world.log.append_blocking(Topic.TURNS, service.turns(1, "canary", 3, finish_reason="error"))
    service.world.pass_time(1)
    assert service.world.states() == {1: "live", 2: "rolled_back", 3: "rolled_back"}


def test_the_evidence_speaks_for_the_middle_unless_what_came_later_looks_worse() -> None:
    def arm(value: float, turns: int = 20) -> ArmStatistics:
        found = ArmStatistics()
        for place in range(turns):
            found.add(f"user-{place % 10}", value + (-0.1 if place < turns / 2 else 0.1))
        return found

    live, versions = arm(0.5, 80), [base_ref(number) for number in range(2, 6)]

    def chosen(*lane: ArmStatistics) -> int:
        return certified(list(zip(versions, lane, strict=True)), live).version

    assert chosen(*[arm(0.5)] * 4) == 3
    assert chosen(arm(0.5, 80), arm(0.5), arm(0.5), arm(0.2)) == 2
    assert chosen(arm(0.5), arm(0.5), arm(0.5), arm(0.5, 80)) == 5
    assert chosen(arm(0.5), arm(0.5), arm(0.5), arm(0.2, 80)) == 2, "most of it fell"
    assert chosen(*[ArmStatistics()] * 4) == 2, "nobody came"


@pytest.mark.parametrize("flooded", range(5))
def test_no_user_chooses_which_version_of_a_lane_is_certified(flooded: int) -> None:
    lane = [ArmStatistics() for _ in range(5)]
    for arm in lane:
        for user in range(50):
            arm.add(f"user-{user}", 0.5 + user % 2 / 10)
    for _ in range(10_000):
        lane[flooded].add("mallory", 0.5)
    versions = [base_ref(number) for number in range(2, 7)]
    live = ArmStatistics()
    for user in range(50):
        live.add(f"user-{user}", 0.4)
    assert certified(list(zip(versions, lane, strict=True)), live) == versions[2]
