"""Turns that are too stale to train."""

import math
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from core.errors import ConfigError
from core.events import VersionSpan
from core.ids import PolicyRef, base_ref
from core.settings import AdmissionSettings, LearnerSettings
from learner.batches.admission import BatchAdmission
from learner.batches.staleness import effective_share, left_out, measure, oldest_allowed, too_old, within
from learner.objective.credit import credited
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches
from onward.wiring.foundation import open_foundation

MakeWorld = Callable[[str], World]


def kept(shifts: list[float], *, max_divergence: float = 0.5, min_ess: float = 0.0) -> list[bool]:
    """Return which turns stay; turn m's three tokens have log pi - log mu = shifts[m]."""
    turns_N = torch.arange(len(shifts)).repeat_interleave(3)
    behaviour_N = torch.full((len(turns_N),), -2.0)
    found = measure(behaviour_N + torch.tensor(shifts)[turns_N], behaviour_N, turns_N, len(shifts))
    out = left_out(found, max_divergence, min_ess)
    return [near and turn not in out for turn, near in enumerate(within(found, max_divergence).tolist())]


def test_the_divergence_is_the_mean_k3_of_a_turns_tokens() -> None:
    shifts = [0.0, 0.5, -1.0]
    behaviour_N, turns_N = torch.full((9,), -2.0), torch.arange(3).repeat_interleave(3)
    found = measure(behaviour_N + torch.tensor(shifts)[turns_N], behaviour_N, turns_N, 3)
    expected = [math.exp(shift) - 1 - shift for shift in shifts]
    assert found.divergence_M.tolist() == pytest.approx(expected, abs=1e-6)


def test_divergence_is_judged_by_turn_not_by_token() -> None:
    turns_N = torch.tensor([0, 0, 1, 1])
    behaviour_N = torch.full((4,), -2.0)
    found = measure(behaviour_N + torch.tensor([1.2, 0.0, 1.2, 1.2]), behaviour_N, turns_N, 2)
    assert within(found, 0.9).tolist() == [True, False]


@pytest.mark.parametrize(("shift", "near"), [(0.85, True), (0.9, False), (-1.1, True), (-1.2, False)])
def test_the_bound_on_a_turns_divergence(shift: float, near: bool) -> None:
    assert kept([0.0, shift]) == [True, near]


def test_the_most_divergent_are_left_out_until_the_sample_is_large_enough() -> None:
    shifts = [0.0, 0.0, 0.0, 3.0, 2.0]
    assert kept(shifts, max_divergence=100.0) == [True] * 5
    assert kept(shifts, max_divergence=100.0, min_ess=0.9) == [True, True, True, False, False]
    assert kept(shifts, max_divergence=100.0, min_ess=0.45) == [True, True, True, False, True]


def test_the_default_bound_on_the_sample_size_binds_within_that_on_divergence() -> None:
    """The worst that divergence allows: one turn much likelier than it was, seven much less likely."""
    shifts, usual = [0.85] + [-1.15] * 7, AdmissionSettings()
    assert kept(shifts, max_divergence=usual.max_divergence) == [True] * 8
    assert effective_share(torch.tensor(shifts).exp()) == pytest.approx(0.42, abs=0.02)
    stays = kept(shifts, max_divergence=usual.max_divergence, min_ess=usual.min_ess)
    assert 0 < sum(stays) < 8
    weights = torch.tensor(shifts).exp()[torch.tensor(stays)]
    assert effective_share(weights) >= usual.min_ess


def test_what_is_not_finite_does_not_train() -> None:
    assert kept([0.0, math.nan]) == [True, False]
    assert kept([0.0, math.inf]) == [True, False]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_the_effective_share_lies_between_one_nth_and_one(weights: list[float]) -> None:
    share = effective_share(torch.tensor(weights, dtype=torch.float64))
    assert 1 / len(weights) - 1e-9 <= share <= 1 + 1e-9


def test_the_effective_share_of_equals_and_of_one_against_all() -> None:
    assert effective_share(torch.full((7,), 3.0)) == pytest.approx(1.0)
    assert effective_share(torch.tensor([1e6, 1.0, 1.0, 1.0])) == pytest.approx(0.25, abs=1e-4)
    assert effective_share(torch.tensor([])) == 1.0


def test_age_is_bounded_by_the_kind_of_outcome() -> None:
    turn = make_turn(0)
    late = make_reward(turn, 1.0, after_s=100)
    assert not too_old(turn, late, {}, 100.0)
    assert too_old(turn, late, {}, 99.0)
    assert too_old(turn, late, {"accepted": 50.0}, 1000.0)
    assert not too_old(turn, late, {"accepted": 5000.0}, 1.0)
    assert not too_old(turn, late, {"edited": 1.0}, 1000.0)  # another kind


def versions(*numbers: int) -> list[PolicyRef]:
    return [base_ref(number) for number in numbers]


@given(st.lists(st.integers(1, 30), unique=True).map(sorted), st.integers(0, 30), st.integers(0, 5) | st.none())
def test_staleness_is_counted_in_released_versions(released: list[int], version: int, most: int | None) -> None:
    after = sum(other > version for other in released)
    allowed = version >= oldest_allowed(versions(*released), most)
    assert allowed == (most is None or after <= most)


@pytest.mark.parametrize(("most", "fresh"), [(None, 12), (2, 12), (1, 7), (0, 2)])
def test_a_turn_trains_by_the_tokens_of_it_that_are_fresh(most: int | None, fresh: int) -> None:
    spans = [VersionSpan(start=a, end=b, version=base_ref(v)) for a, b, v in ((0, 5, 2), (5, 10, 3), (10, 12, 7))]
    turn = make_turn(0, policy_versions=tuple(spans))
    other = make_turn(1, policy_versions=(VersionSpan(start=0, end=12, version=base_ref(7)),))
    batch = [ScoredTurn(turn, make_reward(turn, 1.0)), ScoredTurn(other, make_reward(other, 0.0))]
    (part,) = micro_batches(merge(batch), batch, 512, "cpu")
    ledger = BatchAdmission(
        batch,
        [1.0] * 2,
        12.0,
        LearnerSettings(admission=AdmissionSettings(max_versions_behind=most)),
        versions(1, 2, 3, 7),
    )
    drift = measure(part.behaviour_N, part.behaviour_N, part.turns_N, 2)
    _, keep_N = ledger.enter(part, credited(part, batch), torch.zeros(len(part.turns_N)), drift)
    assert keep_N[part.turns_N == 0].tolist() == [False] * (12 - fresh) + [True] * fresh
    assert ledger.stale_tokens == 12 - fresh
    assert ledger.any_kept


def test_turns_of_versions_long_gone_do_not_train(make_world: MakeWorld) -> None:
    """Releases that were read before a restart count after it."""
    world = make_world("a")
    for seed in range(2):
        learner = world.learner(settings={"admission.max_versions_behind": 0})
        world.tell(*logged_past(8, seed))
        settle(learner)
        if seed == 0:
            world.release(2)
            world.tell(*logged_past(8, 7))
            settle(learner)
        learner.close()
    assert [{record.dropped for record in one.turns} for one in manifests(world)] == [
        {None},
        {"too_stale"},
        {"too_stale"},
    ]


@pytest.mark.parametrize(("name", "days"), [("survived_1d", 1.2), ("survived_1w", 8.0)])
def test_what_the_shipped_spec_weighs_trains_when_it_comes(tmp_path: Path, name: str, days: float) -> None:
    """A directory's default settings are used."""
    with closing(open_foundation(tmp_path)) as foundation:
        settings = foundation.settings.learner
    turn, other = make_turn(0), make_turn(1)
    late = msgspec.structs.replace(
        make_reward(turn, 1.0), components={name: 0.25}, last_outcome_at=turn.received_at + timedelta(days=days)
    )
    batch = [ScoredTurn(turn, late), ScoredTurn(other, make_reward(other, 0.0))]
    (part,) = micro_batches(merge(batch), batch, 512, "cpu")
    ledger = BatchAdmission(batch, [1.0] * len(batch), 12.0, settings)
    fresh = measure(part.behaviour_N, part.behaviour_N, part.turns_N, 2)
    ledger.enter(part, credited(part, batch), torch.zeros(len(part.turns_N)), fresh)
    assert [record.dropped for record in ledger.records()] == [None, None]


def test_a_service_with_an_outcome_that_could_never_train_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text("[learner.admission]\ndefault_max_age_s = 7200\n")
    with pytest.raises(ConfigError, match=r"outcomes\.survived_1d"):
        open_foundation(tmp_path)
