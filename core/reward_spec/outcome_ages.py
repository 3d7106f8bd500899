"""The greatest age at which an outcome still trains, derived from the reward spec where settings leave it open."""

from typing import Final

from core.errors import ConfigError
from core.reward_spec import OutcomeSpec, RewardSpec
from core.settings import AdmissionSettings, LearnerSettings

_ROOM: Final = 1.5
"""Times the age at which an outcome comes at the soonest, or is waited for: users do not look to the second."""
_SOONEST_S: Final = {"survived_1h": 3600.0, "survived_1d": 86400.0, "survived_1w": 7 * 86400.0}


def with_ages(settings: LearnerSettings, spec: RewardSpec) -> LearnerSettings:
    """Return the settings with an age for every outcome that needs one of its own.

    Raises ConfigError naming an outcome that moves rewards and could never train, since it always comes too late for
    the ages that the settings give."""
    admission = settings.admission
    ages_s = dict(admission.max_outcome_age_s)
    for name, outcome in _moving(spec):
        needed_s = _ROOM * max(soonest_s(name, outcome), outcome.wait_s)
        if name not in admission.max_outcome_age_s and admission.default_max_age_s is None:
            ages_s[name] = max(ages_s.get(name, admission.usual_max_age_s), needed_s)
    chosen = admission.model_copy(update={"max_outcome_age_s": ages_s})
    if settings.enabled:
        for name, outcome in _moving(spec):
            _require_that_it_trains(name, soonest_s(name, outcome), chosen)
    return settings.model_copy(update={"admission": chosen})


def _moving(spec: RewardSpec) -> list[tuple[str, OutcomeSpec]]:
    """Return the outcomes of the spec, and of all its scopes, that move rewards."""
    return [(name, found) for rules in spec.variants() for name, found in rules.outcomes.items() if found.moves]


def soonest_s(name: str, outcome: OutcomeSpec) -> float:
    """Return the age of a turn at which the outcome comes at the soonest."""
    return _SOONEST_S.get(name, 0.0) if outcome.after_s is None else outcome.after_s


def _require_that_it_trains(name: str, soonest_s: float, settings: AdmissionSettings) -> None:
    limit_s, by = settings.max_outcome_age_s.get(name, settings.usual_max_age_s), f"max_outcome_age_s.{name}"
    if name not in settings.max_outcome_age_s:
        by = "default_max_age_s"
    if settings.late == "kto":
        limit_s, by = max((limit_s, by), (settings.late_max_age_s, "late_max_age_s"))
    if soonest_s >= limit_s:
        raise ConfigError(
            f"reward spec: outcomes.{name}: it comes {soonest_s:g} s after its turn at the soonest, and "
            f"learner.admission.{by} is {limit_s:g} s: it could never train. Raise that, or give the outcome no weight"
        )
