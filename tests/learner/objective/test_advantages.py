"""Baselines: what a turn's reward is compared with."""

import io
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from logged_world import make_reward, make_turn
from torch import Tensor

from core.errors import ConfigError
from core.events import Credit
from core.settings import AdvantageSettings, load_settings
from learner.objective.advantages import Advantages, make_advantages, strata
from learner.objective.advantages.base import MIN_SCALE
from learner.objective.advantages.batch import BatchBaseline
from learner.objective.advantages.beta import BetaBaseline
from learner.objective.advantages.ema import EmaBaseline
from learner.objective.advantages.leave_one_out import LeaveOneOut
from learner.objective.advantages.raw import RawReward
from learner.objective.advantages.strata import Strata
from learner.objective.advantages.value import ValueHead
from learner.objective.credit import TokenCredit
from learner.sequences.scored import ScoredTurn

HIDDEN = 8


def turns(rewards: list[float], workload: str = "write") -> list[ScoredTurn]:
    made = [make_turn(number, workload=workload) for number in range(len(rewards))]
    return [ScoredTurn(turn, make_reward(turn, value)) for turn, value in zip(made, rewards, strict=True)]


def a_token_each(rewards_M: Tensor) -> TokenCredit:
    return TokenCredit(torch.arange(len(rewards_M)), rewards_M)


def run(advantages: Advantages, batch: list[ScoredTurn], hidden_ND: Tensor | None = None) -> Tensor:
    """Update the baseline once, with one token per turn; return the advantages."""
    rewards_M = torch.tensor([scored.reward.value for scored in batch])
    advantages.begin(batch, rewards_M)
    hidden_ND = torch.zeros(len(batch), HIDDEN) if hidden_ND is None else hidden_ND
    baseline_N, fit = advantages.tokens(hidden_ND, a_token_each(rewards_M))
    if fit.requires_grad:
        fit.backward()
    advantages.end(torch.zeros(len(batch)))
    return (rewards_M - baseline_N) / torch.tensor(advantages.scales)


def value_head(seed: int = 0) -> ValueHead:
    return ValueHead(HIDDEN, 2e-2, seed, "cpu")


def test_the_moving_average_is_read_before_it_is_updated() -> None:
    baseline = EmaBaseline(0.9)
    run(baseline, turns([1.0]))
    batch = turns([3.0, 3.0])
    baseline.begin(batch, torch.tensor([3.0, 3.0]))
    before = baseline.state_dict()
    baseline.end(torch.zeros(2))
    assert before["averages"] == {Strata().of(batch[0]): pytest.approx(1.0)}
    assert baseline.state_dict()["averages"] == {Strata().of(batch[0]): pytest.approx(1 * 0.81 + 3 * 0.19)}


def test_each_stratum_has_its_own_average() -> None:
    """A stratum is a namespace and a workload."""
    baseline = EmaBaseline(0.0)
    run(baseline, turns([1.0], "write") + turns([-1.0], "fix"))
    advantage_N = run(baseline, turns([1.5, 1.0], "write") + turns([-0.5, -1.0], "fix"))
    assert float(advantage_N[0]) == pytest.approx(float(advantage_N[2]))
    assert float(advantage_N[1]) == pytest.approx(float(advantage_N[3]))
    assert float(advantage_N[0]) > 0 > float(advantage_N[1])


def test_a_channel_is_where_a_reward_came_from_and_not_what_was_said() -> None:
    turn = make_turn(0)

    def scored(**components: float) -> ScoredTurn:
        return ScoredTurn(turn, msgspec.structs.replace(make_reward(turn, 1.0), components=components))

    strata = Strata({"thumbs": ("thumb",), "tests": ("tests_passed",)})
    assert strata.of(scored(accepted=1.0)) == strata.of(scored(rejected=-0.5)) == strata.of(scored())
    assert strata.of(scored(thumb=1.0)) == strata.of(scored(thumb=-1.0, rejected=-0.5))
    assert len({strata.of(each) for each in (scored(accepted=1.0), scored(thumb=1.0), scored(tests_passed=1.0))}) == 3
    assert strata.of(scored(thumb=1.0, tests_passed=1.0)) not in (strata.of(scored(thumb=1.0)), strata.of(scored()))


@pytest.mark.parametrize("make", [lambda: EmaBaseline(0.9), lambda: BetaBaseline(-1.0, 1.0), lambda: LeaveOneOut(0.9)])
def test_no_baseline_knows_how_the_user_decided(make: Callable[[], Advantages]) -> None:
    """Accepted and rejected answers of one workload keep different advantages, however long it has learned."""
    baseline = make()
    for _ in range(20):
        batch = [
            ScoredTurn(each.turn, msgspec.structs.replace(each.reward, components={name: each.reward.value}))
            for each, name in zip(turns([1.0, -0.5, 1.0, -0.5]), ["accepted", "rejected"] * 2, strict=True)
        ]
        advantage_N = run(baseline, batch)
    assert float(advantage_N[0]) > 0.5
    assert float(advantage_N[1]) < -0.5


def test_advantages_of_the_moving_average_are_white() -> None:
    baseline = EmaBaseline(0.95)
    run(baseline, turns([0.3]))
    advantage_N = run(baseline, turns([1.0, -0.5, 0.25, 1.0, -0.5]))
    assert float(advantage_N.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(advantage_N.std()) == pytest.approx(1.0, abs=1e-5)


MAKERS: list[Callable[[], Advantages]] = [
    lambda: EmaBaseline(0.9),
    lambda: BetaBaseline(-1.0, 1.0),
    lambda: BatchBaseline(whiten=True),
    lambda: BatchBaseline(whiten=False),
    lambda: LeaveOneOut(0.9),
    RawReward,
    value_head,
]


@pytest.mark.parametrize("make", [MAKERS[0], MAKERS[1], MAKERS[2], value_head])
def test_rewards_that_are_all_alike_do_not_blow_up(make: Callable[[], Advantages]) -> None:
    advantages = make()
    run(advantages, turns([1.0, 1.0, 1.0]))
    assert set(advantages.scales) == {MIN_SCALE}


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_void_moves_nothing_of_others(make: Callable[[], Advantages]) -> None:
    """Its 0 takes something back, and is no reward of an answer."""
    found = []
    for value in (0.0, 9.0):
        told, (gone,) = turns([1.0, -0.5, 1.0, -0.5]), turns([value])
        void = ScoredTurn(told[0].turn, msgspec.structs.replace(gone.reward, void=True))
        baseline = make()
        advantage_N = run(baseline, [*told, void])[:4]
        again_N = run(baseline, told)
        found.append((advantage_N.tolist(), again_N.tolist(), list(baseline.scales)))
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [MAKERS[0], MAKERS[1], MAKERS[2], value_head])
def test_where_rewards_are_all_alike_a_credit_counts_for_one_standard_deviation(make: Callable[[], Advantages]) -> None:
    alike, apart = turns([1.0, 1.0, 1.0]), turns([1.0, -0.5, 1.0])
    credits = (Credit(start=0, end=2, value=-1.0), Credit(start=2, end=12, value=1.0))
    for batch in (alike, apart):
        batch[0] = replace(batch[0], reward=msgspec.structs.replace(batch[0].reward, credits=credits))
    advantages = make()
    run(advantages, alike)
    assert list(advantages.scales) == [2.0, MIN_SCALE, MIN_SCALE]
    run(advantages, apart)
    assert len(set(advantages.scales)) == 1
    assert advantages.scales[0] < 1


@pytest.mark.parametrize("make", MAKERS[:4])
def test_the_blame_for_a_few_tokens_praises_no_others(make: Callable[[], Advantages]) -> None:
    """Over all tokens the advantages are 0 in the mean, and small where nothing was said; the scale is the turns'."""
    plain = turns([0.0, -1.0] * 6)
    blamed = (Credit(start=0, end=1, value=-1.0), Credit(start=1, end=12, value=0.0))
    batch = [
        replace(scored, reward=msgspec.structs.replace(scored.reward, credits=blamed))
        if scored.reward.value
        else scored
        for scored in plain
    ]
    whole, by_token = make(), make()
    run(whole, plain)
    for _ in range(2):
        run(by_token, batch)
    assert by_token.scales[0] == pytest.approx(whole.scales[0], abs=0.05)
    baseline_N, _ = by_token.tokens(torch.zeros(12, HIDDEN), a_token_each(torch.zeros(12)))
    assert baseline_N.tolist() == pytest.approx([-1 / 24] * 12, abs=0.02)


def test_the_value_head_starts_near_zero_and_learns_what_to_expect() -> None:
    """Two kinds of request differ in their hidden states."""
    head = value_head()
    hidden_ND = torch.eye(HIDDEN)[[0, 1, 0, 1]]
    rewards = [1.0, -0.5, 1.0, -0.5]
    first_N = run(head, turns(rewards), hidden_ND)
    scale = statistics.stdev(rewards)
    assert first_N.tolist() == pytest.approx([reward / scale for reward in rewards], abs=0.3)
    for _ in range(200):
        last_N = run(head, turns(rewards), hidden_ND)
    assert float(last_N.abs().max()) < 0.05


def test_the_scale_of_a_value_head_is_at_least_half_the_spread_of_the_last_updates() -> None:
    """By definition: of all rewards so far, those of each update before weighing 0.95 of the next one's."""
    rng, head, seen = np.random.default_rng(0), value_head(), np.zeros((0, 2))
    for size, spread in ((4, 2.0), (1, 0.0), (6, 0.01), (3, 2.0), (5, 0.0)):
        rewards = rng.normal(0.5, spread, size)
        run(head, turns(rewards.tolist()))
        seen[:, 1] *= 0.95
        seen = np.vstack([seen, [(reward, 1.0) for reward in rewards]])
        lately = np.cov(seen[:, 0], aweights=seen[:, 1]) ** 0.5
        own = rewards.std(ddof=1) if size > 1 else 0.0
        assert list(head.scales) == pytest.approx([max(own, lately / 2)] * size, rel=1e-5)
    again = value_head()
    again.load_state_dict(head.state_dict())
    for each in (head, again):
        each.begin(turns([1.0]), torch.ones(1))
    assert again.scales == head.scales
    assert head.scales[0] > MIN_SCALE


def test_who_counts_for_little_moves_neither_scale_nor_head() -> None:
    """Turns of almost no influence change almost nothing; equal influences of any size count fully."""
    rewards, lie = [1.0, 0.5, -0.5, 1.0], [9.0]
    hidden_ND = torch.eye(HIDDEN)[:1].repeat(5, 1)
    alone, beside, loud = value_head(), value_head(), value_head()
    run(alone, turns(rewards), hidden_ND[:4])
    for _ in range(300):
        rewards_M = torch.tensor(rewards + lie)
        for head, influence in ((beside, (1.0, 1.0, 1.0, 1.0, 1e-6)), (loud, (2.0,) * 5)):
            head.begin(turns(rewards + lie), rewards_M, influence)
            _, fit = head.tokens(hidden_ND, a_token_each(rewards_M))
            fit.backward()
            head.end(torch.zeros(5))
    assert beside.scales[0] == pytest.approx(alone.scales[0], rel=1e-3)
    assert loud.scales[0] == pytest.approx(statistics.stdev(rewards + lie))
    expected, misled = (float(head.tokens(hidden_ND, a_token_each(rewards_M))[0][0]) for head in (beside, loud))
    assert expected == pytest.approx(statistics.mean(rewards), abs=0.05)
    assert misled == pytest.approx(statistics.mean(rewards + lie), abs=0.2)


def test_the_value_head_does_not_reach_into_the_policy() -> None:
    head = value_head()
    head.begin(turns([1.0, 0.0]), torch.tensor([1.0, 0.0]))
    hidden_ND = torch.randn(2, HIDDEN, requires_grad=True)
    baseline_N, fit = head.tokens(hidden_ND, a_token_each(torch.tensor([1.0, 0.0])))
    fit.backward()
    assert hidden_ND.grad is None
    assert not baseline_N.requires_grad


@pytest.mark.parametrize("make", MAKERS)
def test_state_goes_into_a_checkpoint_and_back(make: Callable[[], Advantages]) -> None:
    advantages, other = make(), make()
    hidden_ND = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        run(advantages, turns([1.0, -0.5, 0.25]), hidden_ND)
    file = io.BytesIO()
    torch.save(advantages.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(2):
        mine_N = run(advantages, turns([0.5, 0.0, 1.0]), hidden_ND)
        assert run(other, turns([0.5, 0.0, 1.0]), hidden_ND).tolist() == mine_N.tolist()


@pytest.mark.parametrize("make", [lambda: EmaBaseline(0.9), lambda: LeaveOneOut(0.9), lambda: BetaBaseline(-1.0, 2.0)])
def test_strata_that_clients_make_up_displace_the_oldest(
    make: Callable[[], Advantages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strata, "REMEMBERED", 3)
    advantages = make()
    for workload in ["write", "one", "two", "write", "three", "four"]:
        run(advantages, turns([1.0], workload))
    (known,) = advantages.state_dict().values()
    assert [name.split("|")[1] for name in known] == ["write", "three", "four"]


def test_making_a_value_head_leaves_the_random_state_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    value_head(seed=3)
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("value", ValueHead),
        ("ema", EmaBaseline),
        ("beta", BetaBaseline),
        ("batch", BatchBaseline),
        ("centre", BatchBaseline),
        ("leave_one_out", LeaveOneOut),
        ("raw", RawReward),
    ],
)
def test_the_setting_chooses(name: str, kind: type) -> None:
    assert isinstance(make_advantages(AdvantageSettings(baseline=name), HIDDEN, 0, "cpu"), kind)  # type: ignore[arg-type]


def test_a_range_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text("[learner.advantage]\nreward_range = [1.0, -1.0]\n")
    with pytest.raises(ConfigError, match="reward_range"):
        load_settings(tmp_path / "onward.toml", {})
