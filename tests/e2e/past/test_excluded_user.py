"""A user is excluded over HTTP, and what serves then is what a learner that never heard her would have made."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from logged_world import World, manifests, open_world, settle
from service_tree import Refused, Service, wait_for

from core.events import Completion, Reward, Topic
from core.ids import PolicyRef, base_ref
from core.ports import TopicPartition
from learner.versions.manifest import Manifest, decode, path_of, prove_exactly_once
from onward.wiring.foundation import Foundation, open_foundation

pytestmark = pytest.mark.timeout(900)  # processes that import torch, on whatever machine
BATCH = 8
SETTINGS = {
    "ingest.partitions": 1,
    "learner.batch.turns": BATCH,
    "learner.batch.min_turns": BATCH,
    "learner.batch.max_wait_s": 3600,
    "learner.checkpoints.max_lead": 100,
    "release.first_turns": 0,
    "serving.versions.min_swap_interval_s": 0.05,
}


class Users:
    """Users who each ask once in a session of their own, and say whether they took the answer."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.said: list[tuple[str, str, str]] = []  # user, turn, feedback

    def speak(self, *names: str) -> None:
        for name in names:
            number = len(self.said)
            asked = {"messages": [{"role": "user", "content": f"[web] write total_{number}(xs): sum of xs"}]}
            body = {"model": "onward-tiny", "max_tokens": 8, "user": name, "session_id": f"session-{number}", **asked}
            turn = self.service.post("/v1/chat/completions", body)["onward"]["inference_id"]
            self.said.append((name, turn, f"said-{number}"))
            feedback = {"inference_id": turn, "metric_name": "accepted", "value": number % 3 != 1, "user": name}
            self.service.post("/v1/feedback", feedback | {"feedback_id": f"said-{number}"})
            wait_for(lambda turn=turn: self.is_rewarded(turn), what="the reward")  # in the order of what was said

    def amend(self, name: str, revision: int = 1) -> None:
        """Let a user take back her first word, and say the opposite."""
        number, (_, turn, said) = next((n, each) for n, each in enumerate(self.said) if each[0] == name)
        feedback = {"inference_id": turn, "metric_name": "accepted", "value": number % 3 == 1, "user": name}
        self.service.post("/v1/feedback", feedback | {"feedback_id": f"{said}-{revision}", "supersedes": said})
        wait_for(lambda: self.is_rewarded(turn, revision), what="the reward's revision")

    def is_rewarded(self, turn: str, revision: int = 0) -> bool:
        try:
            found = self.service.get(f"/v1/rewards/{turn}")
        except Refused:
            return False
        return len(found["rewards"]) > revision


def versions(service: Service) -> list[dict[str, Any]]:
    """Return the versions, the oldest first."""
    return list(reversed(service.get("/v1/policies?limit=1000")["data"]))


def wait_for_live(service: Service, version: int) -> None:
    wait_for(lambda: service.get("/v1/policies")["live"] == version, 300, f"version {version} going live")


def told(foundation: Foundation) -> list[tuple[Completion, Reward]]:
    """Return all rewards of the log in its order, each with its turn."""
    with closing(foundation.log.reader([Topic.REWARDS])) as reader:
        reader.seek(TopicPartition(Topic.REWARDS, 0), 0)
        rewards = list[Reward]()
        while records := reader.poll(1000, 1.0):
            rewards += [record.event for record in records if isinstance(record.event, Reward)]
    with foundation.store.look() as view:
        turns = view.turns.get_many({reward.inference_id for reward in rewards})
    return [(turns[reward.inference_id], reward) for reward in rewards]


def lineage_of(foundation: Foundation, version: PolicyRef) -> list[Manifest]:
    lineage = list[Manifest]()
    while foundation.blobs.exists(path_of(version)):
        lineage.insert(0, decode(foundation.blobs.get(path_of(version))))
        version = lineage[0].parent
    return lineage


def digests(of: Foundation | World, made: Sequence[Manifest]) -> list[str]:
    with of.store.look() as view:
        return [view.policies.get(each.version).digest for each in made]  # type: ignore[union-attr]


def test_what_serves_then_never_heard_her(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    service = Service(tmp_path / "service", SETTINGS).start()
    users = Users(service)
    try:
        users.speak(*("ada", "bob") * 4)
        wait_for_live(service, 2)
        users.speak("mallory", "ada", "bob", "mallory", "ada", "bob", "mallory", "ada")
        wait_for_live(service, 3)
        users.speak(*("ada", "bob") * 4)
        wait_for_live(service, 4)
        _, turn, _ = next(each for each in users.said if each[0] == "mallory")
        (hers,) = service.get(f"/v1/rewards/{turn}")["rewards"][-1]["said_by"]
        with pytest.raises(Refused, match="has no turn"):
            service.post("/v1/exclusions/preview", {"users": ["nobody"]})
        shown = service.post("/v1/exclusions/preview", {"users": [hers]})
        ordered = service.post("/v1/exclusions", {"users": [hers], "why": "she lies"})
        assert {name: ordered[name] for name in shown} == shown
        expected = {"selected": 3, "learned": 3, "abandoned": [3, 4], "updates": 2, "again": 13, "back_to": 2}
        assert {name: shown[name] for name in expected} == expected
        users.amend("mallory")
        users.amend("ada")
        users.speak("mallory", "ada", "bob", "ada", "mallory")
        wait_for_live(service, 6)
        deeds = [each for each in service.get("/v1/audit?limit=100")["data"] if "exclusion_id" in each["objects"]]
        assert [each["what"] for each in deeds] == ["POST /v1/exclusions"]
    finally:
        service.stop()
    with closing(open_foundation(tmp_path / "service", {"ONWARD_INGEST__PARTITIONS": "1"})) as foundation:
        lineage, past = lineage_of(foundation, base_ref(6)), told(foundation)
        found = digests(foundation, lineage)
    assert [each.parent for each in lineage] == [base_ref(1), base_ref(2), base_ref(5)]
    assert prove_exactly_once(lineage) > 2 * BATCH
    heard = {reward.inference_id for each in lineage for reward in each.rewards}
    assert heard.isdisjoint(turn for user, turn, _ in users.said if user == "mallory")

    world = open_world(tmp_path / "never")
    learner = world.learner(settings={"batch.min_turns": BATCH, "batch.max_wait_s": 3600.0})
    for turn, reward in past:
        if turn.user_id != hers:
            world.tell((turn, reward))
            settle(learner)
    learner.close()
    never = manifests(world)
    assert json.dumps(found) == json.dumps(digests(world, never)[: len(found)])
    world.close()
