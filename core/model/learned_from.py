"""What versions learned from, as far as their manifests say which turns: for orders that take something back."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
import zstandard

from core import codec
from core.events import PolicyVersion
from core.ids import InferenceId, Namespace, PolicyRef, SessionId, UserHash, made_at
from core.operations.exclusions import Exclusion, is_excluded
from core.ports import Blobs
from core.store.work import View

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_END: Final = datetime.max.replace(tzinfo=UTC)
_CLOCKS_DIFFER: Final = timedelta(days=1)  # at most, of the hosts of API and learner


class _UsedReward(msgspec.Struct):
    inference_id: InferenceId
    session_id: SessionId
    namespace: Namespace
    workload: str
    decided_at: datetime
    said_by: tuple[UserHash, ...] = ()


class _Used(msgspec.Struct):
    """The part of a manifest (`learner.versions.manifest`) that names its turns."""

    rewards: tuple[_UsedReward, ...]


_decode_used = codec.decoder(_Used).decode


class Use(NamedTuple):
    """The turns of a version's update that are among those looked for, and how many are not.

    `unknown` of the others are gone from the store, and may have been meant; `namespaces`: those of all its turns."""

    policy: PolicyVersion
    found: tuple[InferenceId, ...] = ()
    others: int = 0
    unknown: int = 0
    namespaces: frozenset[Namespace] = frozenset()


class Selected(NamedTuple):
    """The turns in the store that orders select, each with those orders, and all orders.

    What came before `earliest` is not looked at: the first of these turns, or what an order says of time or names."""

    orders: tuple[Exclusion, ...]
    turns: dict[InferenceId, list[Exclusion]]
    earliest: datetime
    speakers: tuple[Exclusion, ...] = ()
    """Those of the orders that name users, and mean what these said of others' turns, too."""

    def ruled(self, view: View, used: Sequence[_UsedReward]) -> tuple[InferenceId, ...]:
        """Return the turns whose rewards one of the orders rules."""
        spoken = [each.inference_id for each in used if self._may_rule_speech(each)]
        turns = view.turns.get_many(spoken) if spoken else {}
        return tuple(
            each.inference_id
            for each in used
            if any(order.covers(each.decided_at) for order in self.turns.get(each.inference_id, ()))
            or (each.inference_id in turns and is_excluded(self.speakers, turns[each.inference_id], each))
        )

    def _may_rule_speech(self, reward: _UsedReward) -> bool:
        return any(order.selection.names_any(reward.said_by) for order in self.speakers)

    def rule_gone(self, used: _UsedReward) -> bool | None:
        """Return the same of a reward whose turn is gone from the store; None where that cannot be said."""
        found = {each.selection.selects_gone(used) for each in self.orders if each.covers(used.decided_at)}
        return True if True in found else None if None in found else False


def select_turns(view: View, exclusions: Sequence[Exclusion]) -> Selected:
    """Return what the orders select of the turns in the store."""
    orders, turns = tuple(exclusions), dict[InferenceId, list[Exclusion]]()
    speakers = tuple(each for each in orders if each.selection.users)
    begins: list[datetime] = []
    for each in orders:
        since, times = each.selection.since, list[datetime]()
        for inference_id, received_at in view.exclusions.selected(each.selection):
            turns.setdefault(inference_id, []).append(each)
            times.append(received_at)
        if since is None:  # of those that are gone only a name says when they came
            times += [made_at(name) for name in each.selection.turns if name not in turns]
        first = _BEGINNING if each.selection.users else min(times, default=_BEGINNING)
        begins.append(since or first)
    return Selected(orders, turns, min(begins, default=_END), speakers)


def lineage_of(view: View, version: PolicyVersion | None) -> list[PolicyVersion]:
    """Return the versions from the first one to this one."""
    lineage: list[PolicyVersion] = []
    while version is not None:
        lineage.append(version)
        version = None if version.parent is None else view.policies.get(version.parent)
    return lineage[::-1]


def turns_of(blobs: Blobs, policy: PolicyVersion, namespace: Namespace) -> tuple[InferenceId, ...]:
    """Return a namespace's turns of a version's update; () where it has no manifest."""
    if policy.manifest is None or not blobs.exists(policy.manifest):
        return ()
    return tuple(each.inference_id for each in _used(blobs, policy.manifest) if each.namespace == namespace)


def touched(view: View, blobs: Blobs, exclusions: Sequence[Exclusion]) -> list[PolicyVersion]:
    """Return the versions of all lines that learned from what orders select, or upon one that did, the oldest first."""
    selected, found = select_turns(view, exclusions), dict[PolicyRef, PolicyVersion]()
    published = [
        view.policies.get(version) for name in view.policies.names() for version in view.policies.versions(name)
    ]
    known = [policy for policy in published if policy is not None]
    for use in uses(view, blobs, known, selected):
        if use.found or use.policy.parent in found:
            found[use.policy.version] = use.policy
    return list(found.values())


def uses(view: View, blobs: Blobs, lineage: Sequence[PolicyVersion], selected: Selected) -> Iterator[Use]:
    """Yield what each version of a lineage learned from; one without a manifest learned from nothing.

    Manifests of versions made before `selected.earliest` are not read."""
    for policy in lineage:
        may_have = policy.created_at >= max(selected.earliest, _BEGINNING + _CLOCKS_DIFFER) - _CLOCKS_DIFFER
        if policy.manifest is None or not may_have or not blobs.exists(policy.manifest):
            yield Use(policy, others=policy.turns)
            continue
        used = _used(blobs, policy.manifest)
        gone = _gone(view, used, selected)
        ruled = set(selected.ruled(view, [each for each in used if each.inference_id not in gone]))
        answers = [
            selected.rule_gone(each) if each.inference_id in gone else each.inference_id in ruled for each in used
        ]
        found = tuple(each.inference_id for each, is_meant in zip(used, answers, strict=True) if is_meant)
        spaces = frozenset(each.namespace for each in used)
        yield Use(policy, found, len(used) - len(found), answers.count(None), spaces)


def _gone(view: View, used: Sequence[_UsedReward], selected: Selected) -> set[InferenceId]:
    """Return the turns that are no longer in the store, of those that an order may mean."""
    asked = [each for each in used if each.inference_id not in selected.turns and selected.rule_gone(each) is not False]
    gone = {each.inference_id for each in asked}
    for namespace in {each.namespace for each in asked}:
        gone -= view.turns.which_of(namespace, [each.inference_id for each in asked if each.namespace == namespace])
    return gone


def _used(blobs: Blobs, manifest: str) -> tuple[_UsedReward, ...]:
    return _decode_used(zstandard.ZstdDecompressor().decompress(blobs.get(manifest))).rewards
