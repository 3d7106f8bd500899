"""The whole spec: what counts for everybody, and what counts otherwise for some."""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from itertools import product
from typing import Any

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from core.reward_spec.conduct import ClaimSpec, EffortSpec, PenaltySpec
from core.reward_spec.defence import DefenceSpec
from core.reward_spec.derived import DerivedSpec
from core.reward_spec.outcomes import OutcomeSpec, SessionSpec, SuggestionSpec
from core.reward_spec.part import Number, Part
from core.reward_spec.roles import CONSENT_WITHDRAWN, USUAL, Role

Table = dict[str, Any]


class RewardRules(Part):
    """The rules by which one turn is scored."""

    outcomes: dict[str, OutcomeSpec]
    suggestion: SuggestionSpec = SuggestionSpec()
    session: SessionSpec = SessionSpec()
    effort: EffortSpec = EffortSpec()
    penalties: PenaltySpec = PenaltySpec()
    claims: tuple[ClaimSpec, ...] = ()
    derived: DerivedSpec = DerivedSpec()
    defence: DefenceSpec = DefenceSpec()
    clip: tuple[Number, Number] = (-1.0, 1.0)
    """Bounds of the final value."""

    @cached_property
    def roles(self) -> dict[str, Role]:
        """Return the role of each outcome that has one, in the file's order; roles are the same for all turns."""
        found = ((name, outcome.role_as(name)) for name, outcome in self.outcomes.items())
        return {name: role for name, role in found if role is not None}

    @cached_property
    def waits(self) -> tuple[tuple[float, str], ...]:
        """Return how long each outcome is waited for, in seconds, the longest first."""
        return tuple(sorted(((outcome.wait_s, name) for name, outcome in self.outcomes.items()), reverse=True))

    @cached_property
    def defaults(self) -> tuple[tuple[str, float], ...]:
        """Return what the silence about each outcome adds, by name in alphabetical order, where it adds anything."""
        silent = ((name, outcome.of_silence) for name, outcome in sorted(self.outcomes.items()))
        return tuple((name, added) for name, added in silent if added is not None)

    @model_validator(mode="after")
    def _consistent(self) -> "RewardRules":
        if self.clip[0] >= self.clip[1]:
            raise ValueError("clip: the lower bound lies above the upper one")
        if CONSENT_WITHDRAWN in self.outcomes:
            raise ValueError(f"outcomes.{CONSENT_WITHDRAWN}: the service says this itself, and no spec may weigh it")
        self._rewards_something()
        if self.penalties.unbacked_claim and not self.claims:
            raise ValueError("penalties.unbacked_claim: there are no [[claims]]")
        return self

    def _rewards_something(self) -> None:
        """Refuse rules that would give every turn the same reward. Raises ValueError."""
        if self.suggestion.show_threshold is not None:
            return
        lowest, highest = zip((0.0, 0.0), *(outcome.reach for outcome in self.outcomes.values()), strict=True)
        if not any(lowest + highest):
            raise ValueError("outcomes: none has a weight, so nothing would ever be rewarded")
        costs = bool(self.effort.coefficient) or any(self.penalties.model_dump().values())
        if sum(highest) <= self.clip[0] or (sum(lowest) >= self.clip[1] and not costs):
            low, high = self.clip
            raise ValueError(f"clip: what outcomes can add is never within {low:g} to {high:g}: all would be the same")


class ScopeSpec(Part):
    """Entries that differ for turns of a workload, of a namespace, or of both.

    Of several scopes that match, the last in the file wins, entry by entry."""

    workload: str | None = None
    """None: of any."""
    namespace: str | None = None
    """None: of any."""
    outcomes: dict[str, Table] = Field(default_factory=dict)
    """Changes to outcomes that the file has; their `type`, `meaning`, `role`, `level`, `measure` and bounds stay."""
    suggestion: Table = Field(default_factory=dict)
    session: Table = Field(default_factory=dict)
    effort: Table = Field(default_factory=dict)
    penalties: Table = Field(default_factory=dict)
    derived: Table = Field(default_factory=dict)
    defence: Table = Field(default_factory=dict)
    claims: tuple[ClaimSpec, ...] | None = None
    clip: tuple[Number, Number] | None = None

    @model_validator(mode="after")
    def _scoped(self) -> "ScopeSpec":
        if self.workload is None and self.namespace is None:
            raise ValueError("a scope names a workload or a namespace")
        fixed = {
            f"{name}.{key}"
            for name, raw in self.outcomes.items()
            for key in ("type", "meaning", "role", "level", "measure", "minimum", "maximum")
            if key in raw
        }
        if fixed:
            raise ValueError(f"outcomes: {', '.join(sorted(fixed))}: the same for all turns")
        return self

    def fits(self, workload: str | None, namespace: str | None) -> bool:
        return self.workload in (None, workload) and self.namespace in (None, namespace)

    @property
    def differences(self) -> dict[str, Any]:
        return self.model_dump(exclude={"workload", "namespace"}, exclude_unset=True)


class RewardSpec(RewardRules):
    """The whole file."""

    scopes: tuple[ScopeSpec, ...] = ()
    _made: dict[tuple[str | None, str | None], RewardRules] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _scopes_make_sense(self) -> "RewardSpec":
        for index, scope in enumerate(self.scopes):
            unknown = scope.outcomes.keys() - self.outcomes.keys()
            if unknown:
                raise ValueError(f"scopes.{index}.outcomes: {', '.join(sorted(unknown))}: not among [outcomes]")
        workloads = {scope.workload for scope in self.scopes} | {None}
        namespaces = {scope.namespace for scope in self.scopes} | {None}
        for workload, namespace in product(workloads, namespaces):
            try:
                self._merged(workload, namespace)
            except ValidationError as error:
                whose = f"workload {workload or 'any'}, namespace {namespace or 'any'}"
                mistakes = "; ".join(map(said, error.errors()))
                raise ValueError(f"scopes: for {whose}: {mistakes}") from None
        return self

    @cached_property
    def digest(self) -> str:
        """Return the digest of the meaning.

        Entries at their defaults count as absent, so that a build with more entries than the last one gives the same
        file the same name; words for people (`meaning`) are no part of it."""
        meant = self.model_dump(mode="json", exclude_defaults=True)
        for name, entries in meant["outcomes"].items():
            entries.pop("meaning", None)
            if entries.get("role") == USUAL.get(name):
                entries.pop("role", None)
        canonical = json.dumps(meant, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()

    def variants(self) -> list[RewardRules]:
        """Return every set of rules that the spec can yield."""
        workloads = {scope.workload for scope in self.scopes} | {None}
        namespaces = {scope.namespace for scope in self.scopes} | {None}
        return [self._merged(workload, namespace) for workload, namespace in product(workloads, namespaces)]

    def rules(self, workload: str, namespace: str) -> RewardRules:
        """Return the rules for turns of this workload and namespace.

        Clients name workloads freely: those that no scope names count as one."""
        if not self.scopes:
            return self
        key = (
            workload if any(scope.workload == workload for scope in self.scopes) else None,
            namespace if any(scope.namespace == namespace for scope in self.scopes) else None,
        )
        if key not in self._made:
            self._made[key] = self._merged(*key)
        return self._made[key]

    def _merged(self, workload: str | None, namespace: str | None) -> RewardRules:
        raw = self.model_dump(exclude={"scopes"}, exclude_unset=True)
        for scope in self.scopes:
            if scope.fits(workload, namespace):
                raw = _over(raw, scope.differences)
        return RewardRules.model_validate(raw)


def said(mistake: ErrorDetails) -> str:
    """Return what is wrong, and with which entry."""
    return f"{'.'.join(map(str, mistake['loc'])) or 'file'}: {mistake['msg'].removeprefix('Value error, ')}"


def _over(base: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """Tables entry by entry, all else whole."""
    merged = dict(base)
    for key, value in differences.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _over(merged[key], value) if both_tables else value
    return merged
