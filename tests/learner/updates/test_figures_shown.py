"""Every figure of an update is documented and exported to Prometheus."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from logged_world import World, logged_past, make_reward, make_turn, settle

from core import telemetry
from core.events import PolicyVersion, TextEdit
from onward.wiring.observer import observe

DOCS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
SUMMED = ("dropped_", "reward_mass_", "untrained_mass_", "seconds_")
MakeWorld = Callable[[str], World]


def documented() -> set[str]:
    """Return the names in the document; those that end in _ are prefixes."""
    table = DOCS.read_text().partition("### The learner's figures")[2].partition("\n### ")[0]
    found: set[str] = set()
    for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE):
        names = re.findall(r"`(\w+)`", row)
        stem = names[0].rpartition("_")[0]
        found |= {re.sub("[A-Z]+$", "", f"{stem}{name}" if name.startswith("_") else name) for name in names}
    return found


@pytest.fixture
def versions(make_world: MakeWorld) -> list[PolicyVersion]:
    """Return versions of a learner with every figure; the second has a late turn and one too old for KTO."""
    world = make_world("world")
    learner = world.learner(
        settings={
            "admission.late": "kto",
            "admission.default_max_age_s": 10.0,
            "admission.late_max_age_s": 1000.0,
            "compute.peak_tflops": 1.0,
            "advantage.baseline": "value",
            "users.distrust": True,
            "objective.demonstration_weight": 0.5,
        }
    )
    late, beyond = make_turn(50), make_turn(51)
    told = [(late, make_reward(late, 1.0, after_s=600)), (beyond, make_reward(beyond, 1.0, after_s=2000))]
    written = [
        (turn, msgspec.structs.replace(reward, edits=(TextEdit(start=0, end=1, token_ids=(token,)),)))
        for (turn, reward), token in zip(logged_past(2, 3), (7, 10**6), strict=True)  # the second, the model lacks
    ]
    for batch in (logged_past(8), [*logged_past(6, 1), *told], [*logged_past(6, 2), *written]):
        world.tell(*batch)
        settle(learner)
    learner.close()
    with world.store.look() as view:
        return [policy for policy, _ in view.policies.newest(10) if policy.updates][::-1]


def sample(name: str, **labels: str) -> float | None:
    return telemetry.REGISTRY.get_sample_value(name, labels)


def test_what_an_update_says_is_documented_and_what_is_documented_is_said(versions: list[PolicyVersion]) -> None:
    said = {name for policy in versions for name in policy.metrics}
    prefixes = tuple(name for name in documented() if name.endswith("_"))
    assert {name for name in said if name not in documented() and not name.startswith(prefixes)} == set()
    assert {name for name in documented() - said if not any(each.startswith(name) for each in said)} == set()


def test_every_figure_of_the_newest_version_is_in_prometheus(versions: list[PolicyVersion]) -> None:
    shown: set[str] = set()
    for policy in versions:
        before = {
            "onward_dropped_turns_total": sample("onward_dropped_turns_total", reason="too_old") or 0.0,
            "onward_untrained_mass_total": sample("onward_untrained_mass_total", age="1h") or 0.0,
            "onward_reward_mass_total": sample("onward_reward_mass_total", age="1m") or 0.0,
            "onward_learner_seconds_total": sample("onward_learner_seconds_total", doing="updating") or 0.0,
        }
        shown = observe(policy, shown)
        for figure, value in policy.metrics.items():
            if not figure.startswith(SUMMED):
                assert sample("onward_learner", figure=figure) == value, figure
                assert f'onward_learner{{figure="{figure}"}} '.encode() in telemetry.exposition()
        told = {
            "onward_dropped_turns_total": (sample("onward_dropped_turns_total", reason="too_old"), "dropped_too_old"),
            "onward_untrained_mass_total": (sample("onward_untrained_mass_total", age="1h"), "untrained_mass_1h"),
            "onward_reward_mass_total": (sample("onward_reward_mass_total", age="1m"), "reward_mass_1m"),
            "onward_learner_seconds_total": (
                sample("onward_learner_seconds_total", doing="updating"),
                "seconds_updating",
            ),
        }
        for metric, (value, figure) in told.items():
            assert (value or 0.0) - before[metric] == pytest.approx(policy.metrics.get(figure, 0.0)), figure
    assert versions[1].metrics["untrained_mass_1h"] > 0
    assert versions[1].metrics["kto_loss"] > 0


def test_what_an_update_cannot_say_is_not_shown_as_if_it_had(versions: list[PolicyVersion]) -> None:
    first = versions[0]
    shown = observe(first)
    assert sample("onward_learner", figure="explained_variance") is not None
    without = {name: value for name, value in first.metrics.items() if name != "explained_variance"}
    observe(msgspec.structs.replace(first, metrics=without), shown)
    assert sample("onward_learner", figure="explained_variance") is None
    assert sample("onward_learner", figure="loss") == first.metrics["loss"]
