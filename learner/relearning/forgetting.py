"""What a learner itself keeps of erased turns: once their weights are made again without them, it goes as well.

That is hints and edits in manifests and in the journal, checkpoints of the line that had learned from them, the batches
of skipped updates, and the rewards that wait."""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from core.ids import InferenceId, PolicyName, PolicyRef
from core.model.learned_from import touched
from core.operations.erasures import Erasure, Step, without_hints
from core.operations.exclusions import Exclusion, Relearning
from core.ports import Blobs, Store, TopicPartition
from core.records.erasing import digest_of, turns_of
from learner.batches.backlog import Backlog
from learner.versions import manifest
from learner.versions.checkpoint import Checkpoints
from learner.versions.journal import Entry, Journal
from learner.versions.manifest import Manifest

LEARNER = "learner"
_LOG = "log"


class Keeper(Protocol):
    """One policy's learner, as far as it keeps turns."""

    @property
    def directory(self) -> Path: ...
    @property
    def backlog(self) -> Backlog: ...
    @property
    def lineage(self) -> Sequence[PolicyRef]: ...
    @property
    def offsets(self) -> Mapping[TopicPartition, int]: ...
    @property
    def is_learning_again(self) -> bool: ...


class Forgetting:
    """The part of all policies' learners in erasures, which they do once nothing brings words to them any more."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs

    def obey(self, keepers: Sequence[Keeper]) -> None:
        """Obey the orders whose turns are unlearned. Nothing is done while one of the policies learns again."""
        if any(keeper.is_learning_again for keeper in keepers):
            return
        with self._store.look() as view:
            in_force = view.erasures.in_force()
            orders = [each for each in in_force if LEARNER not in each.steps and _LOG in each.steps]
            named = {number: view.exclusions.get(number) for each in orders for number in each.exclusions}
        for order in orders:
            asked = [found for number in order.exclusions if (found := named[number]) is not None]
            has_read = all(_has_read(order, keeper.offsets) for keeper in keepers)
            if has_read and all(each.is_obeyed for each in asked):
                step = self._forget(order, asked, keepers)
                with self._store.work() as work:
                    work.erasures.took(order.erasure_id, LEARNER, step)

    def drop(self, directory: Path, policies: Collection[PolicyName], now: datetime) -> None:
        """Delete what there is in a learner's directory of organisations that are erased, and that it does not have.

        What their learners were still to learn again for other orders, nobody does."""
        with self._store.look() as view:
            orders = [each for each in view.erasures.in_force() if each.kind == "organisation"]
            named = view.exclusions.in_order() if orders else []
        for order in orders:
            policy = PolicyName(order.subject)
            if policy in policies or LEARNER in order.steps:
                continue
            files = sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []
            gone = [
                str(path.relative_to(directory)) for path in files if path.relative_to(directory).parts[0] == policy
            ]
            shutil.rmtree(directory / policy, ignore_errors=True)
            with self._store.work() as work:
                for each in named:
                    if (told := each.relearnings.get(policy)) is not None and told.ended_at is None:
                        over = Relearning(began_at=told.began_at, ended_at=now, note="its policy is erased")
                        work.exclusions.report(each.exclusion_id, over, policy)
                step = Step(removed={"files": len(gone)} if gone else {}, digest=digest_of(gone))
                work.erasures.took(order.erasure_id, LEARNER, step)

    def _forget(self, order: Erasure, asked: Sequence[Exclusion], keepers: Sequence[Keeper]) -> Step:
        turns = set(turns_of(self._store, order))
        with self._store.look() as view:
            versions = touched(view, self._blobs, asked)
        manifests = [policy.manifest for policy in versions if policy.manifest and self._blobs.exists(policy.manifest)]
        for path in manifests:
            made = manifest.decode(self._blobs.get(path))
            self._blobs.put(path, manifest.encode(_without(made, turns)))
        names = {policy.version for policy in versions} - {each for keeper in keepers for each in keeper.lineage}
        entries, skipped, gone = 0, 0, list[PolicyRef]()
        for keeper in keepers:
            for name in turns & keeper.backlog.pending.keys():
                del keeper.backlog.pending[name]
            entries += Journal(keeper.directory).rewrite(
                lambda entry: None if entry.version in names else _entry_without(entry, turns)
            )
            gone += _without_checkpoints(keeper.directory, names)
            skipped += sum(_redo(path, turns) for path in (keeper.directory / "skipped").glob("*.json"))
        return _told(asked, manifests, entries, gone, skipped)


def _without_checkpoints(directory: Path, names: Collection[PolicyRef]) -> list[PolicyRef]:
    """Delete the checkpoints of versions; return those that had one."""
    checkpoints = Checkpoints(directory)
    gone = [each for each in checkpoints.versions() if each in names]
    for version in gone:
        checkpoints.delete(version)
    return gone


def _told(
    asked: Sequence[Exclusion], manifests: Sequence[str], entries: int, gone: Sequence[PolicyRef], skipped: int
) -> Step:
    """Say what was removed, and which versions were learned again without it, of all policies that had used it."""
    did = [made for each in asked for made in (each.relearning, *each.relearnings.values()) if made is not None]
    again = sorted({str(made.version) for made in did if made.made_again})
    removed = {
        "manifests": len(manifests),
        "journal_entries": entries,
        "checkpoints": len(gone),
        "skipped_batches": skipped,
        "updates_made_again": max((made.made_again for made in did), default=0),
    }
    return Step(
        removed={name: count for name, count in removed.items() if count},
        digest=digest_of([*manifests, *gone]),
        note=f"learned again without it: version {', '.join(again)}" if again else "",
    )


def _has_read(order: Erasure, read: Mapping[TopicPartition, int]) -> bool:
    ends = order.steps[_LOG].marks
    return all(offset >= ends.get(str(source), 0) for source, offset in read.items())


def _without(made: Manifest, turns: Collection[InferenceId]) -> Manifest:
    rewards = tuple(without_hints(each) if each.inference_id in turns else each for each in made.rewards)
    return msgspec.structs.replace(made, rewards=rewards)


def _entry_without(entry: Entry, turns: Collection[InferenceId]) -> Entry:
    pending = tuple(each for each in entry.pending if each.inference_id not in turns)
    return msgspec.structs.replace(entry, pending=pending, manifest=_without(entry.manifest, turns))


def _redo(path: Path, turns: Collection[InferenceId]) -> bool:
    """Take erased turns out of a skipped batch; return whether there were any."""
    found = json.loads(path.read_text())
    kept = [pair for pair in found["batch"] if pair["turn"]["inference_id"] not in turns]
    if len(kept) == len(found["batch"]):
        return False
    path.unlink()
    if kept:
        aside = path.with_suffix(".partial")
        aside.write_text(json.dumps({**found, "batch": kept}))
        aside.replace(path)
    return True
