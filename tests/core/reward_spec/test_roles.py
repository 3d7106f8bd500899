"""A spec gives each outcome its role; the shipped metric names have one by default."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from core.errors import ConfigError
from core.reward_spec import RewardSpec, Role, load_reward_spec
from core.reward_spec.roles import USUAL
from onward.directory.layout import SHIPPED_REWARDS


def spec(**outcomes: object) -> RewardSpec:
    return RewardSpec.model_validate({"outcomes": outcomes})


def test_the_shipped_spec_states_them_and_would_have_the_usual_ones_anyhow() -> None:
    shipped = load_reward_spec(SHIPPED_REWARDS)
    assert {name: outcome.role for name, outcome in shipped.outcomes.items() if outcome.role} == shipped.roles
    assert USUAL.items() <= shipped.roles.items()
    raw = shipped.model_dump(exclude_unset=True)
    for name in USUAL:
        del raw["outcomes"][name]["role"]
    older = RewardSpec.model_validate(raw)
    assert (older.roles, older.digest) == (shipped.roles, shipped.digest)


def test_another_role_is_another_meaning() -> None:
    merged = {"type": "boolean", "weight": 1.0}
    assert spec(merged=merged).roles == {}
    assert spec(merged=merged | {"role": "accept"}).roles == {"merged": "accept"}
    assert spec(merged=merged | {"role": "accept"}).digest != spec(merged=merged).digest
    assert spec(accepted=merged | {"role": "none"}).roles == {}
    assert spec(accepted=merged | {"role": "none"}).digest != spec(accepted=merged).digest


def test_a_usual_name_of_another_type_says_nothing() -> None:
    given = spec(rating={"type": "boolean", "weight": 1.0}, accepted={"type": "text"})
    assert given.roles == {}


def test_all_turns_have_the_same(file: Callable[[str], Path]) -> None:
    text = '[outcomes.merged]\ntype = "boolean"\nweight = 1.0\n[[scopes]]\nworkload = "x"\n[scopes.outcomes.merged]\n'
    assert load_reward_spec(file(text + "weight = 0.5\n")).rules("x", "n").roles == {}
    with pytest.raises(ConfigError, match=r"outcomes: merged\.role: the same for all turns"):
        load_reward_spec(file(text + 'role = "accept"\n'))


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ('type = "text"\nrole = "accept"', "role accept: it is a boolean or a number, and this is a text"),
        ('type = "boolean"\nweight = 1.0\nrole = "edit"', "role edit: it is a number, and this is a boolean"),
        ('type = "boolean"\nweight = 1.0\nrole = "rating"', "role rating: it is a number, and this is a boolean"),
        ('type = "boolean"\nweight = -1.0\nrole = "accept"', "role accept: .*the weights take it for bad"),
        ('type = "boolean"\nweight = 1.0\nfalse_weight = 0.5\nrole = "check"', "role check: .*take it for bad"),
        ('type = "number"\nweight = 1.0\noptimize = "min"\nrole = "edit"', "role edit: .*take it for bad"),
        ('type = "boolean"\nweight = 0.5\nrole = "reject"', "role reject: .*the weights take it for good"),
        (
            'type = "boolean"\nweight = 1.0\nrole = "acceptance"',
            r"outcomes\.merged\.role: .*'accept', 'edit', 'reject'",
        ),
    ],
)
def test_a_role_that_does_not_fit_is_refused_at_its_line(file: Callable[[str], Path], entries: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"line \d+: outcomes\.merged.*{why}|line \d+: {why}"):
        load_reward_spec(file(f"[outcomes.merged]\n{entries}\n"))


@pytest.mark.parametrize("weights", [{"weight": -0.5}, {"weight": 0.5, "optimize": "min"}, {}])
def test_what_says_that_an_answer_is_bad_costs_something_or_nothing(weights: dict[str, object]) -> None:
    entries = {"type": "boolean", "role": "complaint"} | weights
    assert spec(accepted={"type": "boolean", "weight": 1.0}, refunded=entries).roles["refunded"] == "complaint"


def test_every_role_is_documented() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "rewards.md").read_text()
    assert [role for role in get_args(Role) if f"\n| `{role}` |" not in text] == []
