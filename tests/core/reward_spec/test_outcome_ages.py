"""The allowed age of an outcome follows from the spec.

A spec with one that could never train is refused, and one that could never correct anything is found."""

from pathlib import Path
from typing import Any

import pytest
from changed_settings import changed

from core.errors import ConfigError
from core.reward_spec import RewardSpec, load_reward_spec
from core.reward_spec.late_outcomes import require_that_they_correct
from core.reward_spec.outcome_ages import with_ages
from core.settings import AdmissionSettings, LearnerSettings

SHIPPED = load_reward_spec(Path(__file__).parents[3] / "onward" / "rewards.toml")
DAY_S = 86400.0


def spec(scopes: tuple[dict[str, Any], ...] = (), **entries: Any) -> RewardSpec:
    late = {"type": "boolean", "weight": 1.0} | entries
    return RewardSpec.model_validate(
        {"outcomes": {"late": late, "accepted": {"type": "boolean", "weight": 1.0}}, "scopes": scopes}
    )


def age_s(settings: LearnerSettings, name: str) -> float:
    return settings.admission.max_outcome_age_s.get(name, settings.admission.usual_max_age_s)


def test_what_the_shipped_spec_weighs_is_never_too_old_when_it_comes() -> None:
    settings = with_ages(LearnerSettings(), SHIPPED)
    assert age_s(settings, "accepted") == DAY_S
    assert age_s(settings, "survived_1h") == DAY_S
    assert age_s(settings, "survived_1d") == 1.5 * DAY_S
    assert age_s(settings, "survived_1w") == 10.5 * DAY_S
    assert max(settings.admission.max_outcome_age_s.values()) < settings.admission.late_max_age_s


@pytest.mark.parametrize(
    ("entries", "chosen", "expected"),
    [
        ({}, {}, DAY_S),
        ({"after_s": 2 * DAY_S}, {}, 3 * DAY_S),
        ({"wait_s": 2 * DAY_S}, {}, 3 * DAY_S),
        ({"wait_s": 2 * DAY_S, "after_s": 4 * DAY_S}, {}, 6 * DAY_S),
        ({"after_s": 2 * DAY_S}, {"admission.max_outcome_age_s": {"late": 2.1 * DAY_S}}, 2.1 * DAY_S),
        ({"after_s": 2 * DAY_S}, {"admission.default_max_age_s": 5 * DAY_S}, 5 * DAY_S),
        ({"after_s": 2 * DAY_S, "weight": 0.0}, {"admission.default_max_age_s": 5.0}, 5.0),
        ({"after_s": 2 * DAY_S}, {"enabled": False, "admission.default_max_age_s": 5.0}, 5.0),
    ],
)
def test_an_age_is_what_is_set_or_what_the_outcome_needs(
    entries: dict[str, Any], chosen: dict[str, Any], expected: float
) -> None:
    assert age_s(with_ages(changed(LearnerSettings(), chosen), spec(**entries)), "late") == expected


@pytest.mark.parametrize(
    ("entries", "chosen", "said"),
    [
        (
            {"after_s": 9.0},
            {"admission.default_max_age_s": 5.0},
            "comes 9 s after .*admission.default_max_age_s is 5 s",
        ),
        (
            {"after_s": 9.0},
            {"admission.max_outcome_age_s": {"late": 9.0}},
            "admission.max_outcome_age_s.late is 9 s",
        ),
        (
            {"after_s": 9.0},
            {"admission.default_max_age_s": 5.0, "admission.late": "kto", "admission.late_max_age_s": 7.0},
            "learner.admission.late_max_age_s is 7 s",
        ),
    ],
)
def test_an_outcome_that_could_never_train_is_refused(
    entries: dict[str, Any], chosen: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"reward spec: outcomes\.late: .*{said}: it could never train"):
        with_ages(changed(LearnerSettings(), chosen), spec(**entries))


def test_an_outcome_that_weighs_in_a_scope_alone_counts() -> None:
    scoped = spec(({"workload": "fix", "outcomes": {"late": {"weight": 1.0}}},), weight=0.0, after_s=2 * DAY_S)
    assert age_s(with_ages(LearnerSettings(), scoped), "late") == 3 * DAY_S
    with pytest.raises(ConfigError, match="late"):
        with_ages(LearnerSettings(admission=AdmissionSettings(default_max_age_s=5.0)), scoped)


def test_the_shipped_survivals_are_refused_with_an_age_of_a_day() -> None:
    with pytest.raises(ConfigError, match=r"outcomes\.survived_1d"):
        with_ages(LearnerSettings(admission=AdmissionSettings(default_max_age_s=DAY_S)), SHIPPED)


def test_what_comes_late_trains_by_kto_where_that_is_chosen() -> None:
    with_ages(LearnerSettings(admission=AdmissionSettings(default_max_age_s=DAY_S, late="kto")), SHIPPED)


@pytest.mark.parametrize(
    ("entries", "scopes", "is_mute"),
    [
        ({"after_s": DAY_S}, (), True),
        ({"after_s": DAY_S, "false_weight": -0.1}, (), False),
        ({"after_s": DAY_S, "type": "number", "minimum": 0, "maximum": 1}, (), True),
        ({"after_s": DAY_S, "type": "number", "minimum": 0, "maximum": 1, "neutral": 1}, (), False),
        ({"after_s": DAY_S}, ({"workload": "fix", "outcomes": {"accepted": {"weight": 0.5}}},), True),
        ({"after_s": DAY_S, "weight": 0.0}, (), False),
        ({}, (), False),
    ],
)
def test_an_outcome_that_comes_when_nothing_can_be_added_is_found(
    entries: dict[str, Any], scopes: tuple[dict[str, Any], ...], is_mute: bool
) -> None:
    made = spec(scopes, **entries)
    if not is_mute:
        require_that_they_correct(made)
        return
    with pytest.raises(ConfigError, match=r"outcomes: late:.*neutral"):
        require_that_they_correct(made)
