"""Where a report or an export comes from: the same words in all of them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from core import provenance as said
from core.events import Completion
from core.ids import PolicyRef
from core.model.files import weight_files
from core.model.weights_digest import digest_of_shards
from core.ports import Record
from core.secrets import redacted
from onward.wiring.foundation import Foundation


class VersionRange:
    """The lowest and the highest version that answered some turns."""

    def __init__(self, versions: Iterable[PolicyRef] = ()) -> None:
        self._ends: tuple[PolicyRef, PolicyRef] | None = None
        self.add(versions)

    def add(self, versions: Iterable[PolicyRef]) -> None:
        known = [*versions, *(self._ends or ())]
        if known:
            self._ends = min(known), max(known)

    def add_turn(self, turn: Completion) -> None:
        self.add(span.version for span in turn.policy_versions)

    def seen(self, batches: Iterable[list[Record]]) -> Iterator[list[Record]]:
        """Yield all records, and note the versions of the turns among them."""
        for records in batches:
            for record in records:
                if isinstance(record.event, Completion):
                    self.add_turn(record.event)
            yield records

    def told(self) -> list[str] | None:
        """Return both for a file in JSON; None where nobody said which versions answered."""
        return None if self._ends is None else list(map(str, self._ends))


def provenance(
    model: str, model_digest: str | None, versions: VersionRange, seeds: Mapping[str, int | None] | None = None
) -> dict[str, Any]:
    """Return which program made it, how it was asked to, and what it is of.

    `seeds`: those from which anything was drawn, by who drew; a None among them: whoever drew took one of its own."""
    return said.provenance(made_by(), model, model_digest, versions.told(), seeds)


def made_by() -> dict[str, Any]:
    """Return which program is running, and how it was asked to."""
    return said.made_by("onward", redacted)


def provenance_of(
    source: Foundation, versions: VersionRange, seeds: Mapping[str, int | None] | None = None
) -> dict[str, Any]:
    """Return the same of a service's past; its model is that of its first version."""
    return provenance(source.settings.serving.model_name, _model_digest(source), versions, seeds)


def provenance_of_model(model: Path, seeds: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the same of what is made of a model's directory alone; without weights there, it has no digest."""
    weights = weight_files(model)
    return provenance(str(model), digest_of_shards(weights) if weights else None, VersionRange(), seeds)


def _model_digest(source: Foundation) -> str:
    """Return the digest of the first version, which the store knows once a service has run there."""
    with source.store.look() as view:
        versions = view.policies.versions()
        first = view.policies.get(versions[0]) if versions else None
    return digest_of_shards(weight_files(source.model)) if first is None else first.digest
