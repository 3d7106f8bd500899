"""The learner's lineage, which follows what is released.

The learner goes on from its own newest version while that descends from the live one. When a version of its lineage is
rolled back or rejected, or a version that it did not make goes live, it resumes from the live version as its child. It
runs at most `max_lead` versions ahead of the live one. Turns that only an abandoned branch used are not trained on
again.

A live version that learned from what is excluded since may serve, and is not built upon: its newest ancestor that did
not stands for it (`trunk`)."""

from dataclasses import dataclass, field

from core.events import Release
from core.ids import BASE, PolicyName, PolicyRef
from core.settings.learner.batches import MOST_VERSIONS_BEHIND

_REMEMBERED = MOST_VERSIONS_BEHIND + 1


@dataclass
class Lineage:
    """The versions of one policy, from the anchor to the newest; `live` is None before anything was released.

    `trunk` is the version to build upon: the live one, or what stands for it.

    What becomes of other policies' versions is not its concern."""

    versions: list[PolicyRef] = field(default_factory=list)
    live: PolicyRef | None = None
    refused: set[PolicyRef] = field(default_factory=set)
    released: list[PolicyRef] = field(default_factory=list)  # that ever were live, ascending; the newest of them
    anchor: PolicyRef | None = None  # that the KL term holds to; None: the given model
    policy: PolicyName = BASE
    trunk: PolicyRef | None = None

    def follow(self, release: Release) -> None:
        if release.version.policy != self.policy:
            return
        match release.state:
            case "live":
                self.live = self.trunk = release.version
                self.refused.discard(release.version)
                self.released = sorted({*self.released, release.version})[-_REMEMBERED:]
            case "rolled_back" | "rejected":
                self.refused.add(release.version)

    @property
    def newest(self) -> PolicyRef | None:
        return self.versions[-1] if self.versions else None

    def must_resume_from(self) -> PolicyRef | None:
        """Return the trunk when the newest version may not be built upon; else None."""
        if self.live is None or self.live in self.refused:
            return None  # what serves instead is about to be said
        if self.trunk not in self.versions or self.refused & set(self.versions):
            return self.trunk
        return None

    def resumed_from(self, version: PolicyRef, ancestors: list[PolicyRef]) -> None:
        self.versions = [*ancestors, version]
        self.refused -= set(self.versions)

    def may_train(self, max_lead: int) -> bool:
        if self.live is None or self.live in self.refused or self.trunk not in self.versions:
            return False
        return len(self.versions) - 1 - self.versions.index(self.trunk) < max_lead

    def due_anchor(self, every: int | None) -> PolicyRef | None:
        """Return the live version when it is `every` versions or more after the anchor; else None."""
        if every is None or self.live not in self.versions:
            return None
        place = self.versions.index(self.anchor) if self.anchor in self.versions else 0
        return self.live if self.versions.index(self.live) - place >= every else None

    def extend(self, version: PolicyRef) -> None:
        self.versions.append(version)
