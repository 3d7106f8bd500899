"""Rings in the embedded service: staff has a version first, then one user in twenty, then all; or a ring refuses."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from publisher import Publisher
from service_tree import Service, user, wait_for

from core.ids import Namespace, UserHash, user_hash
from core.settings import ApiSettings
from serving.releases.canaries.assignment import point

STAFF = ("ada", "grace")
SHARE = 0.05
RINGS = f"""
[[release.rings]]
name = "staff"
users = {{default = {list(STAFF)}}}
min_sessions = 4
min_duration_s = 1.0

[[release.rings]]
name = "early"
share = {SHARE}
min_sessions = 12
min_duration_s = 1.0

[release.canary]
maturity_s = 0.5
min_users = 5
slower_times = 1000.0

[learner]
enabled = false

[monitors]
enabled = false

[serving.versions]
min_swap_interval_s = 0.0
"""
VERDICT_TIMEOUT_S = 120
TURNS = 3  # of each user
Judge = Callable[[str], bool]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("rings") / "service"
    directory.mkdir()
    (directory / "onward.toml").write_text(RINGS)
    made = Service(directory, {})
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def publisher(service: Service) -> Iterator[Publisher]:
    with Publisher(service.directory) as made:
        yield made


class Users:
    """Users who ask one thing after another, each a session of its own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asked = 0

    def ask(self, name: str) -> tuple[int, str]:
        """Ask as a user; return the version that answered, and the answer's id."""
        self._asked += 1
        question = [user(f"[web] write f{self._asked}(xs): sum of xs")]
        answer = self._service.post(
            "/v1/chat/completions", {"model": "onward-tiny", "messages": question, "max_tokens": 4, "user": name}
        )["onward"]
        return answer["policy_version"], answer["inference_id"]

    def versions(self, names: list[str]) -> set[int]:
        return {self.ask(name)[0] for name in names}

    def judge(self, names: list[str], likes: Judge) -> None:
        """Let each ask some times, and accept or reject what it gets."""
        for name in names * TURNS:
            outcome = {"inference_id": self.ask(name)[1], "value": True}
            metric = "accepted" if likes(name) else "rejected"
            self._service.post("/v1/feedback", {**outcome, "metric_name": metric})


@pytest.fixture
def users(service: Service) -> Users:
    return Users(service)


def experiment(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.get("/v1/policies")["experiment"] or {"rings": []}
    return found


def wait_for_ring(service: Service, *rings: str, who: str = STAFF[0]) -> dict[str, Any]:
    """Wait until a version is in these rings, and one of its users has it."""
    wait_for(lambda: experiment(service)["rings"] == list(rings), VERDICT_TIMEOUT_S, f"ring {rings[-1]}")
    wait_for(lambda: Users(service).ask(who)[0] == experiment(service)["canary"], 60, "the API's word of it")
    return experiment(service)


def drawn_and_others(salt: str) -> tuple[list[str], list[str]]:
    """Return the names of eight users whom the salt draws, and of eight whom it does not."""
    sides: tuple[list[str], list[str]] = [], []
    for number in range(10_000):
        name = f"user-{number}"
        hashed: UserHash = user_hash(ApiSettings().user_hash_key, Namespace("default"), name)
        sides[point(salt, hashed) >= SHARE].append(name)
        if min(map(len, sides)) >= 8:
            break
    return sides[0][:8], sides[1][:8]


def state_of(service: Service, version: int) -> str:
    return next(str(each["state"]) for each in service.get("/v1/policies")["data"] if each["version"] == version)


def steps_of(service: Service, version: int) -> list[tuple[str, str]]:
    listed = service.get("/v1/releases?limit=1000")["data"]
    return [(each["state"], each["why"]) for each in listed if each["version"] == version]


@pytest.mark.timeout(600)
def test_the_staff_first_then_one_in_twenty_then_all(service: Service, publisher: Publisher, users: Users) -> None:
    live, version = service.get("/v1/policies")["live"], publisher.publish(scale=1e-5, probed=False)
    salt = wait_for_ring(service, "staff")["salt"]
    drawn, others = drawn_and_others(salt)
    assert users.versions(list(STAFF)) == {version}
    assert users.versions([*drawn, *others]) == {live}
    users.judge(list(STAFF), lambda name: name == "ada")  # grace is never pleased, and decides nothing

    tried = wait_for_ring(service, "staff", "early")
    assert (tried["share"], tried["salt"]) == (SHARE, salt)
    service.kill()
    service.start()
    wait_for_ring(service, "staff", "early", who=drawn[0])
    assert experiment(service)["experiment_id"] == tried["experiment_id"], "the same ring goes on"
    assert users.versions([*STAFF, *drawn]) == {version}, "who had it has it still"
    assert users.versions(others) == {live}
    users.judge(drawn, lambda name: True)
    users.judge(others, lambda name: name == others[0])

    wait_for(lambda: state_of(service, version) == "live", VERDICT_TIMEOUT_S, "the last step")
    wait_for(lambda: users.versions(others) == {version}, 60, "the API's word of it")
    assert users.versions([*STAFF, *drawn]) == {version}
    (first, to_staff), (second, to_early), (last, to_all) = steps_of(service, version)
    assert (first, second, last) == ("canary", "canary", "live")
    assert to_staff.endswith("on to ring staff")
    assert "ring staff: no guard tripped" in to_early
    assert to_all == "passed rings staff, early"
    none = 'onward_release_ring{policy="base"} 0.0'  # the controller's word of it comes with its next round
    wait_for(lambda: service.text("/metrics").count(none) == 1, what=none)


@pytest.mark.timeout(600)
def test_the_second_ring_refuses(service: Service, publisher: Publisher, users: Users) -> None:
    live, version = service.get("/v1/policies")["live"], publisher.publish(scale=1e-5, probed=False)
    drawn, others = drawn_and_others(wait_for_ring(service, "staff")["salt"])
    users.judge(list(STAFF), lambda name: True)
    wait_for_ring(service, "staff", "early", who=drawn[0])
    users.judge(drawn, lambda name: name == drawn[0])
    users.judge(others, lambda name: True)
    wait_for(lambda: state_of(service, version) == "rolled_back", VERDICT_TIMEOUT_S, "the verdict")
    assert steps_of(service, version)[-1][1].startswith("ring early: worse: reward -")
    wait_for(lambda: users.versions([*STAFF, *drawn, *others]) == {live}, 60, "the API's word of it")
    ended = service.get("/v1/experiments")["data"][:2]
    assert [(each["rings"][-1], each["verdict"]) for each in ended] == [("early", "rollback"), ("staff", "passed")]
