"""Organisations with policies of their own, and turns of their users, in a world for a learner."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest

import msgspec
from changed_settings import changed
from logged_world import MODEL, World, logged_past, publications, settle

from core.events import Completion, Release, Reward, Topic, VersionSpan
from core.ids import BASE, Namespace, PolicyName, PolicyRef, Version, base_ref
from core.model.probes import get_probe, put_probe
from core.settings import LearnerSettings
from core.settings.policies import PolicySettings, PolicySharingSettings
from learner.policies.roster import Roster
from learner.stage import Learner

Pair = tuple[Completion, Reward]
ACME, BOLT = PolicyName("acme"), PolicyName("bolt")
ADAPTERS: Mapping[str, object] = {"lora.rank": 2}
NO_SHARING = PolicySharingSettings(base_learns_from="none")


def roster(*names: str, weights: Mapping[str, float] = {}, sharing: PolicySharingSettings = NO_SHARING) -> Roster:
    """Return a roster of organisations, each with a namespace of its policy's name."""
    each = {name: PolicySettings(namespaces=(name,), weight=weights.get(name, 1.0)) for name in names}
    return Roster(each, sharing)


def turns_of(name: str, count: int, seed: int = 0, speaker: str | None = None, number: int = 1) -> list[Pair]:
    """Return turns of an organisation, which a version of its policy spoke, or of `speaker`."""
    spoke = PolicyRef(PolicyName(speaker or name), Version(number))
    found = []
    for turn, reward in logged_past(count, seed=seed):
        spans = (VersionSpan(start=0, end=len(turn.token_ids), version=spoke),)
        changes = {"namespace": Namespace(name), "policy": spoke.policy, "policy_versions": spans}
        replaced = msgspec.structs.replace(turn, **changes)
        found.append((replaced, msgspec.structs.replace(reward, namespace=Namespace(name))))
    return found


def interleaved(*each: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in chain.from_iterable(zip_longest(*each)) if pair is not None]


def begin(world: World, *names: str) -> None:
    """Publish and release the first version of each organisation's policy: the given model."""
    for name in names:
        version = PolicyRef(PolicyName(name), Version(1))
        now = world.clock.now()
        with world.store.work() as work:
            if work.policies.versions(version.policy):
                continue
            given = work.policies.get(base_ref(1))
            assert given is not None
            work.policies.allocate_anchor(now, version.policy)
            work.policies.put(msgspec.structs.replace(given, version=version, policy=name))
        put_probe(world.blobs, version, get_probe(world.blobs, base_ref(1)))
        release = Release(version=version, cluster="local", state="live", why="given", by="start", at=now)
        with world.store.work() as work:
            work.releases.put(release)
        world.log.append_blocking(Topic.RELEASES, [release])


def learner_of(world: World, found: Roster, settings: Mapping[str, object] = ADAPTERS) -> Learner:
    """Return a learner of all policies of a roster, which have begun."""
    begin(world, *(name for name in found.weights if name != BASE))
    usual = {"batch.turns": 4, "batch.min_turns": 4, "checkpoints.max_lead": 100}
    options = changed(LearnerSettings(), {**usual, **settings})
    given = world.log, world.store, world.weights, world.blobs, options, MODEL, world.directory / "learner", world.clock
    return Learner(*given, roster=found, record_attempts=2)


def learn(world: World, found: Roster, *parts: Iterable[Pair], settings: Mapping[str, object] = ADAPTERS) -> None:
    """Let a learner of the roster learn from turns, one part after the other, and end."""
    learner = learner_of(world, found, settings)
    for pairs in parts:
        world.tell(*pairs)
        settle(learner)
    learner.close()


def digests(world: World, policy: str) -> list[str]:
    """Return the digests of a policy's published versions, the oldest first."""
    with world.store.look() as view:
        return [each.digest for each, _ in view.policies.newest(100, PolicyName(policy))][::-1]


def publications_in_order(world: World) -> list[str]:
    """Return the policies of the versions that were published since they began, in that order."""
    return [str(version.policy) for version in publications(world) if version.version > 1]
