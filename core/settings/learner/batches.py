"""Turns: how many an update has, which of them train, and how much one user counts."""

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, field_serializer, field_validator

from core.section import Section

MOST_VERSIONS_BEHIND: Final = 255
_USUAL_AGE_S: Final = 86400.0


class BatchSettings(Section):
    turns: int = Field(default=64, ge=2)
    """Scored turns in an update."""
    min_turns: int = Field(default=16, ge=2)
    """Fewest turns in an update."""
    max_wait_s: float = Field(default=1.0, gt=0)
    """A smaller batch of at least `min_turns` trains when its oldest turn has waited so long."""
    backlog_turns: int = Field(default=192, ge=2)
    """Most turns that wait for an update; beyond it simulated ones are dropped first where production has any, then the
    oldest, whatever their reward, and counted. It bounds how long feedback waits when it comes faster than it can be
    learned from; then an update takes turns that would stay, not those that would be dropped next."""


class AdmissionSettings(Section):
    max_divergence: float = Field(default=0.5, gt=0)
    """A turn whose mean k3 between behaviour and current policy is larger does not train."""
    min_ess: float = Field(default=0.6, ge=0, le=1)
    """Smallest effective sample size of a batch's turns, as a share; the most divergent are left out until it holds.
    `max_divergence` alone keeps it above 0.40."""
    max_versions_behind: int | None = Field(default=None, ge=0, le=MOST_VERSIONS_BEHIND)
    """Tokens do not train if more versions than this were released since the one that sampled them, to all or in a
    canary's lane, and not taken back; None: no bound."""
    max_outcome_age_s: dict[str, float] = Field(default={})
    """Age, by name of outcome, past which a reward comes too late for importance weights: see `late`. What is not named
    has `default_max_age_s`."""
    default_max_age_s: float | None = Field(default=None, gt=0)
    """The same for outcomes not named above. None: a day; for an outcome that the reward spec waits for longer, or that
    comes no sooner, one and a half times that."""
    late: Literal["baseline", "kto"] = "baseline"
    """The use of turns that are too old or too divergent for importance weights: they teach the baselines alone,
    or also the policy, by KTO, which needs no such weights."""
    late_max_age_s: float = Field(default=14 * 86400.0, gt=0)
    """Age past which an outcome teaches the baselines alone, also where `late` is `kto`. The learner then remembers
    what it has learned from a turn for that long."""
    kto_outcomes: tuple[str, ...] = ()
    """Outcomes, by name, that train by KTO at any age (a thumb, say): rewards that are made of these alone."""
    keep_out: tuple[Path, ...] = ()
    """Suites of eval cases, a list or one alone: turns whose answers resemble the solution of a case do not train, and
    are counted. That of `release.evals.suite`, where there is one, is always among them."""

    @field_validator("keep_out", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, given: Any) -> Any:
        """Take one suite for a list of it, and null for none: manifests of former builds have these."""
        if given is None:
            return ()
        return (given,) if isinstance(given, str | Path) else given

    @field_serializer("keep_out", when_used="json")
    def _as_former_builds_wrote_it(self, suites: tuple[Path, ...]) -> str | list[str] | None:
        """Return what a former build would have written, too, of none and of one: reports and manifests compare."""
        named = [str(suite) for suite in suites]
        return named if len(named) > 1 else next(iter(named), None)

    @property
    def usual_max_age_s(self) -> float:
        """The greatest age of outcomes for which no other is set."""
        return _USUAL_AGE_S if self.default_max_age_s is None else self.default_max_age_s


class UserSettings(Section):
    max_share: float = Field(default=0.05, gt=0, le=1)
    """The largest share of the last ten or so updates that one user's turns may have, or twice an even share if that is
    more; beyond it each of them counts less, and those of others up to twice as much. A turn that names no user counts
    by its session. 1: no bound."""
    distrust: bool = False
    """Whether a user counts less whose reports keep contradicting what the value head expects of such answers: a liar,
    but also a user whose taste nobody shares. Needs a value head (`learner.advantage.baseline`)."""
    share_repeats: bool = True
    """Whether turns of one user in an update with the same prompt and answer count as one together."""
