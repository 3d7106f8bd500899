"""The learner's lineage, which follows what is released.

The learner goes on from its own newest version while that descends from the live one. When a version of its lineage is
rolled back or rejected, or a version that it did not make goes live, it resumes from the newest version that serves
anybody and may be built upon: a canary, or the live version. It runs at most `max_lead` versions ahead of what serves
anybody, so that it waits for no canary that takes a day. Turns that only an abandoned branch used are not trained on
again."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from core.events import Release
from core.ids import BASE, PolicyName, PolicyRef
from core.settings.learner.batches import MOST_VERSIONS_BEHIND

_REMEMBERED = MOST_VERSIONS_BEHIND + 1


@dataclass
class Lineage:
    """The versions of one policy, from the anchor to the newest; `live` is None before anything was released.

    What becomes of other policies' versions is not its concern."""

    versions: list[PolicyRef] = field(default_factory=list)
    live: PolicyRef | None = None
    canary: PolicyRef | None = None  # the newest that users tried, whatever became of it
    refused: set[PolicyRef] = field(default_factory=set)
    released: list[PolicyRef] = field(default_factory=list)  # that served and were not taken back, ascending
    anchor: PolicyRef | None = None  # that the KL term holds to; None: the given model
    policy: PolicyName = BASE

    def knew(
        self,
        live: PolicyRef | None,
        canary: PolicyRef | None,
        refused: Iterable[PolicyRef],
        released: Iterable[PolicyRef],
    ) -> None:
        """Take over what an earlier learner knew of releases."""
        self.live, self.canary, self.refused, self.released = live, canary, set(refused), list(released)

    def follow(self, release: Release) -> None:
        if release.version.policy != self.policy:
            return
        match release.state:
            case "live":
                self.live = release.version
                self.refused.discard(release.version)
                self._serves(release.version)
            case "canary":
                self.canary = release.version
                self._serves(release.version)
            case "rolled_back" | "rejected":
                self.refused.add(release.version)
                self.released = [each for each in self.released if each != release.version]

    def _serves(self, version: PolicyRef) -> None:
        self.released = sorted({*self.released, version})[-_REMEMBERED:]

    @property
    def newest(self) -> PolicyRef | None:
        return self.versions[-1] if self.versions else None

    def must_resume_from(self) -> PolicyRef | None:
        """Return the newest version that serves anybody when the newest of all may not be built upon; else None."""
        if self.live is None or self.live in self.refused:
            return None  # the release that names what serves instead is about to come
        if self.live not in self.versions:
            return self.live
        if not self.refused & set(self.versions):
            return None
        served = self.versions[: self._served() + 1]
        return self.live if self.refused & set(served) else served[-1]

    def after_live(self) -> list[PolicyRef]:
        """Return the versions after the live one; none where the live one is not of this lineage."""
        return self.versions[self.versions.index(self.live) + 1 :] if self.live in self.versions else []

    def resumed_from(self, version: PolicyRef, ancestors: list[PolicyRef]) -> None:
        self.versions = [*ancestors, version]
        self.refused -= set(self.versions)

    def may_train(self, max_lead: int) -> bool:
        if self.live is None or self.live in self.refused or self.live not in self.versions:
            return False
        return len(self.versions) - 1 - self._served() < max_lead

    def _served(self) -> int:
        """Return the place of the newest version that serves anybody, where the live one is of this lineage."""
        return max(self.versions.index(each) for each in (self.live, self.canary) if each in self.versions)

    def due_anchor(self, every: int | None) -> PolicyRef | None:
        """Return the live version when it is `every` versions or more after the anchor; else None."""
        if every is None or self.live not in self.versions:
            return None
        place = self.versions.index(self.anchor) if self.anchor in self.versions else 0
        return self.live if self.versions.index(self.live) - place >= every else None

    def extend(self, version: PolicyRef) -> None:
        self.versions.append(version)
