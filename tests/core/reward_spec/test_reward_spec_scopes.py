"""Scopes decide which rules score whom, and errors name the place of the mistake."""

from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from core.reward_spec import RewardSpec, load_reward_spec

OUTCOMES = {"accepted": {"type": "boolean", "weight": 1.0}, "rating": {"type": "number", "weight": 0.5, "maximum": 5}}


def spec_of(*scopes: dict[str, Any], **tables: Any) -> RewardSpec:
    return RewardSpec.model_validate({"outcomes": OUTCOMES, "scopes": scopes, **tables})


def test_scopes_change_what_they_name_and_nothing_else() -> None:
    spec = spec_of(
        {"workload": "fix", "outcomes": {"accepted": {"weight": 0.5}}, "effort": {"coefficient": 0.1}},
        {"namespace": "team", "clip": (-2.0, 2.0)},
        {"namespace": "team", "workload": "fix", "outcomes": {"accepted": {"wait_s": 9}}},
        effort={"k": 0.25},
    )
    plain, fix, team, both = (
        spec.rules(*who) for who in (("write", "a"), ("fix", "a"), ("write", "team"), ("fix", "team"))
    )
    assert (plain.outcomes, plain.effort.coefficient, plain.clip) == (spec.outcomes, 0.0, (-1.0, 1.0))
    assert (fix.outcomes["accepted"].weight, fix.effort.coefficient, fix.effort.k) == (0.5, 0.1, 0.25)
    assert (team.outcomes["accepted"].weight, team.clip) == (1.0, (-2.0, 2.0))
    assert (both.outcomes["accepted"].weight, both.outcomes["accepted"].wait_s, both.clip) == (0.5, 9, (-2.0, 2.0))


def test_the_last_word_is_the_last_scopes() -> None:
    first, last = {"workload": "fix", "clip": (-0.5, 0.5)}, {"namespace": "team", "clip": (-0.25, 0.25)}
    assert spec_of(first, last).rules("fix", "team").clip == (-0.25, 0.25)
    assert spec_of(last, first).rules("fix", "team").clip == (-0.5, 0.5)


def test_the_digest_is_of_the_meaning() -> None:
    plain = spec_of()
    assert spec_of(effort={}).digest == plain.digest == spec_of(penalties={"cut_off": 0}).digest
    others = [spec_of(penalties={"cut_off": -1}), spec_of({"workload": "fix", "clip": (-2, 2)})]
    assert len({spec.digest for spec in (plain, *others)}) == 3


@pytest.mark.parametrize(
    ("scope", "what"),
    [
        ({"clip": (-2, 2)}, "a scope names a workload or a namespace"),
        ({"workload": "fix", "outcomes": {"merged": {"weight": 1}}}, "merged: not among"),
        ({"workload": "fix", "outcomes": {"rating": {"type": "boolean"}}}, "rating.type: the same for all turns"),
        ({"workload": "fix", "outcomes": {"rating": {"meaning": "Stars."}}}, "rating.meaning: the same for all turns"),
        ({"workload": "fix", "effort": {"kk": 1}}, "for workload fix, namespace any: effort.kk"),
        ({"workload": "fix", "outcomes": {"accepted": {"weight": 0}, "rating": {"weight": 0}}}, "nothing would ever"),
    ],
)
def test_scopes_that_make_no_sense_are_refused(scope: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        spec_of(scope)


def test_scopes_that_contradict_each_other_are_refused_before_anybody_is_scored() -> None:
    """Each scope is valid by itself."""
    silent = {"suggestion": {"show_threshold": 0.25}}
    with pytest.raises(
        ValueError, match="for workload tab, namespace team: suggestion: show_threshold takes the place of"
    ):
        spec_of({"workload": "tab", **silent}, {"namespace": "team", "suggestion": {"ignored_reward": -1}})


FILE = """\
clip = [-1.0, 1.0]

[outcomes.accepted]
type = "boolean"
weight = 1.0
{outcome}
[effort]
{effort}
[[claims]]
says = "tests pass"
needs = "run_tests"
[[claims]]
says = "it builds"
{claim}
[[scopes]]
workload = "fix"
[scopes.outcomes.accepted]
{scope}
"""


@pytest.mark.parametrize(
    ("entries", "line", "what"),
    [
        ({"outcome": "wait = 3"}, 6, "outcomes.accepted.wait"),
        ({"outcome": "wait_s = -3"}, 6, "outcomes.accepted.wait_s"),
        ({"effort": "k = -1"}, 8, "effort.k"),
        ({"claim": 'needs = "("'}, 14, "claims.1.needs: no regular expression"),
        ({"claim": ""}, 12, "claims.1.needs: Field required"),
    ],
)
def test_a_mistake_is_found_by_its_line(tmp_path: Path, entries: dict[str, str], line: int, what: str) -> None:
    good = {"outcome": "", "effort": "", "claim": 'needs = "make"', "scope": "weight = 2"}
    path = tmp_path / "rewards.toml"
    path.write_text(FILE.format(**good))
    assert load_reward_spec(path).rules("fix", "any").outcomes["accepted"].weight == 2
    path.write_text(FILE.format(**(good | entries)))
    with pytest.raises(ConfigError) as refused:
        load_reward_spec(path)
    assert f"rewards.toml: line {line}: {what}" in str(refused.value)


def test_a_spec_that_rewards_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="none has a weight"):
        RewardSpec.model_validate({"outcomes": {"accepted": {"type": "boolean"}}})
