"""Organisations whose policies one learner trains: nothing of one's learning depends on another."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from logged_world import World, manifests, open_world, settle
from msgspec.structs import replace
from organisations import (
    ACME,
    ADAPTERS,
    BOLT,
    digests,
    interleaved,
    learn,
    learner_of,
    publications_in_order,
    roster,
    turns_of,
)
from stepping import step

from core.ids import BASE, Namespace, UserHash
from core.operations.alarms import LEARNER_FAILED, NOT_FINITE, StoredAlarm
from core.operations.exclusions import Selection
from core.settings.policies import PolicySharingSettings
from learner.policies import policy_learner
from learner.updates import update as updates
from learner.versions.manifest import prove_exactly_once

MakeWorld = Callable[[str], World]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the digests of what Bolt's policy becomes by itself."""
    world = open_world(tmp_path_factory.mktemp("alone"))
    learn(world, roster("bolt"), turns_of("bolt", 12))
    found = digests(world, "bolt")
    assert len(set(found)) == 4
    world.close()
    return found


def alarms(world: World) -> list[StoredAlarm]:
    with world.store.look() as view:
        return view.alarms.that_are_open()


def test_weights_are_the_same_with_and_without_others_traffic(make_world: MakeWorld, alone: list[str]) -> None:
    world = make_world("both")
    learn(world, roster("acme", "bolt"), interleaved(turns_of("acme", 16, seed=7), turns_of("bolt", 12)))
    assert digests(world, "bolt") == alone
    assert len(digests(world, "acme")) == 5
    assert digests(world, BASE)[1:] == []
    for policy in (ACME, BOLT):
        made = [each for each in manifests(world) if each.version.policy == policy]
        assert prove_exactly_once(made) == len(made) * 4
        assert {reward.namespace for each in made for reward in each.rewards} == {policy}


def test_whole_models_are_apart_as_well(make_world: MakeWorld) -> None:
    found = []
    for name, names in (("alone", ("bolt",)), ("both", ("acme", "bolt"))):
        world = make_world(name)
        others = turns_of("acme", 4, seed=7) if "acme" in names else []
        learn(world, roster(*names), interleaved(others, turns_of("bolt", 8)), settings={"lora.rank": 0})
        found.append(digests(world, "bolt"))
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_a_restart_goes_on_for_each(make_world: MakeWorld, alone: list[str]) -> None:
    """Bolt stands further on than Acme, whose turns are read again, and nobody's train twice."""
    world, found = make_world("parted"), roster("acme", "bolt")
    ours, theirs = turns_of("bolt", 12), turns_of("acme", 4, seed=7)
    learn(world, found, [*ours[:4], *theirs[:2]])
    learn(world, found, [*ours[4:8], *theirs[2:]])
    learn(world, found, ours[8:])
    assert digests(world, "bolt") == alone
    assert len(digests(world, "acme")) == 2
    assert {path.name for path in (world.directory / "learner" / "policies").iterdir()} == {"acme", "bolt"}


def test_one_base_is_in_memory(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = learner_of(world, roster("acme", "bolt"))
    models = {id(learner.of(name)._rank_group.state.policy.model) for name in (BASE, ACME, BOLT)}
    assert len(models) == 1
    learner.close()


def test_a_flood_starves_nobody(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = learner_of(world, roster("acme", "bolt", "cask", weights={"acme": 1.0, "bolt": 1.0, "cask": 0.5}))
    flood = turns_of("acme", 24, seed=7)
    world.tell(*flood, *turns_of("bolt", 8), *turns_of("cask", 8, seed=3))
    settle(learner)
    learner.close()
    order = publications_in_order(world)
    assert len(order) == 10
    assert max(place for place, name in enumerate(order) if name == "bolt") < 6
    assert [name for name in order if name != "acme"] == ["bolt", "cask", "bolt", "cask"] or order.index("cask") < 4
    assert order[-2:] == ["acme", "acme"]


def spoilt(pairs: list[Any]) -> list[Any]:
    """Return turns whose loss is no number, though each of their numbers is one."""
    return [(turn, replace(reward, value=1e39)) for turn, reward in pairs]


def test_a_loss_that_is_no_number_is_its_own_organisations(make_world: MakeWorld, alone: list[str]) -> None:
    world = make_world("a")
    bad, good = spoilt(turns_of("acme", 4, seed=7)), turns_of("acme", 4, seed=8)
    learn(world, roster("acme", "bolt"), interleaved(bad, turns_of("bolt", 12)), good)
    assert digests(world, "bolt") == alone
    assert len(digests(world, "acme")) == 2, "it goes on with what is sound"
    (alarm,) = alarms(world)
    assert (alarm.opening.monitor, alarm.opening.namespace) == (NOT_FINITE, "acme")
    (kept,) = (world.directory / "learner" / "policies" / "acme" / "skipped").iterdir()
    assert len(json.loads(kept.read_text())["batch"]) == 4


def test_an_update_that_raises_is_its_own_organisations(
    make_world: MakeWorld, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises when its gradients are in the shared model, and half of its state has changed."""
    world, tries = make_world("a"), 0
    finite = updates._require_finite
    bad, good = turns_of("acme", 4, seed=7), turns_of("acme", 4, seed=8)
    poison = {turn.inference_id for turn, _ in bad}
    update = updates.update

    def fragile(state: Any, batch: Any, *rest: Any) -> Any:
        nonlocal tries
        if not poison & {scored.inference_id for scored in batch}:
            return update(state, batch, *rest)
        tries += 1
        with monkeypatch.context() as patched:
            patched.setattr(updates, "_require_finite", broken)
            return update(state, batch, *rest)

    def broken(state: Any, _: Any) -> None:
        with torch.no_grad():
            for parameter in state.policy.parameters():
                parameter.add_(1.0)
        torch.rand(3)
        raise IndexError("poison")

    monkeypatch.setattr(policy_learner, "update", fragile)
    learner = learner_of(world, roster("acme", "bolt"))
    monkeypatch.setattr(learner._learners[ACME]._backoff, "wait_s", lambda: 0.0)
    for part in (interleaved(bad, turns_of("bolt", 12)), good):
        world.tell(*part)
        for _ in range(12):
            step(learner, 0.0)
    learner.close()
    assert finite is updates._require_finite
    assert tries == 2
    assert digests(world, "bolt") == alone
    (made,) = [each for each in manifests(world) if each.version.policy == ACME]
    assert set(made.drops["failed"]) == poison
    (alarm,) = alarms(world)
    assert (alarm.opening.monitor, alarm.opening.namespace) == (LEARNER_FAILED, "acme")
    assert "poison" in alarm.opening.meaning


def test_sharing_says_what_the_base_policy_learns_from(make_world: MakeWorld) -> None:
    nobodys = turns_of("default", 4, seed=9, speaker="base")
    pairs = [*turns_of("acme", 4, seed=7, number=0), *turns_of("bolt", 4, number=0), *nobodys]
    settings, learned = {**ADAPTERS, "admission.max_versions_behind": 0}, {}
    for rule in ("none", "all", ("bolt",)):
        world = make_world(str(rule))
        sharing = PolicySharingSettings(base_learns_from=rule)  # type: ignore[arg-type]
        learn(world, roster("acme", "bolt", sharing=sharing), pairs, settings=settings)
        mine = [each for each in manifests(world) if each.version.policy == BASE]
        learned[rule] = {reward.namespace for each in mine for reward in each.rewards}
        why = {record.dropped for each in mine for record in each.turns}
        assert why <= {None, "all_alike"}, "by the recorded log-probabilities, whoever spoke"
    assert learned == {"none": {"default"}, "all": {"acme", "bolt", "default"}, ("bolt",): {"bolt", "default"}}


def test_exclusions_are_obeyed_by_each_policy(make_world: MakeWorld, alone: list[str]) -> None:
    world, never, found = make_world("a"), make_world("b"), roster("acme", "bolt")
    settings = {**ADAPTERS, "batch.min_turns": 3, "batch.max_wait_s": 0.001}
    theirs = turns_of("acme", 12, seed=7)
    theirs[5] = replace(theirs[5][0], user_id=UserHash("mallory")), theirs[5][1]
    first, second, third = theirs[:4], theirs[4:8], theirs[8:]
    learner = learner_of(world, found, settings)
    for part in (interleaved(first, turns_of("bolt", 12)), second, third):
        world.tell(*part)
        settle(learner)
    with world.store.work() as work:
        selection = Selection(namespace=Namespace("acme"), users=(UserHash("mallory"),))
        number = work.exclusions.give(selection, "erasure", "ops", world.clock.now())
    settle(learner)
    newest = learner.of(ACME).newest
    learner.close()
    learn(never, found, first, [second[0], *second[2:]], third, settings=settings)
    assert digests(world, "bolt") == alone
    assert newest is not None
    assert newest.version == 6
    assert digests(world, "acme")[-1] == digests(never, "acme")[-1] != digests(world, "acme")[3]
    with world.store.look() as view:
        order = view.exclusions.get(number)
    assert order is not None
    assert order.relearning is not None
    assert order.relearning.first_use is order.relearnings[BOLT].first_use is None
    told = order.relearnings[ACME]
    assert (told.updates, told.made_again, told.version) == (2, 2, newest)
    assert order.is_obeyed
