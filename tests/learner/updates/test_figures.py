"""The figures of an update agree with their definitions."""

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
from changed_settings import changed
from logged_world import MODEL, World, logged_past, settle
from past_batches import DEFAULT, some_batch

from core.events import VersionSpan
from core.ids import base_ref
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches
from learner.timing import DOINGS, Pace, is_of_machine
from learner.updates.state import computing_in, make_state
from learner.updates.update import update

RELEASED = tuple(map(base_ref, (1, 3, 4, 9)))


def test_the_terms_of_the_loss_add_up_to_it() -> None:
    settings = changed(DEFAULT, {"objective.entropy_coefficient": 0.1})
    figures = update(make_state(MODEL, settings), some_batch(0), settings).metrics
    parts = [figures[name] for name in ("policy_loss", "kl_loss", "entropy_loss")]
    assert math.isclose(sum(parts), figures["loss"], rel_tol=1e-5)
    assert figures["kl_loss"] == pytest.approx(0.0, abs=1e-6), "the policy is its anchor yet"
    assert figures["entropy_loss"] == pytest.approx(-0.1 * figures["entropy"], rel=1e-5)


def test_ratios_are_of_all_tokens() -> None:
    state, batch = make_state(MODEL, DEFAULT), some_batch(0)
    ratios = []
    for part in micro_batches(merge(batch), batch, DEFAULT.compute.micro_batch_tokens, "cpu"):
        with torch.no_grad():
            _, logprobs_N, _ = state.policy.evaluate(part)
        ratios.append((logprobs_N - part.behaviour_N).exp())
    ratio_N = torch.cat(ratios).double()
    figures = update(state, batch, DEFAULT).metrics
    assert figures["tokens"] == len(ratio_N)
    assert figures["ratio_max"] == float(ratio_N.max())
    assert figures["ratio_p50"] == pytest.approx(float(ratio_N.quantile(0.5)), rel=1e-9)
    assert figures["ratio_p01"] <= figures["ratio_p50"] <= figures["ratio_p99"] <= figures["ratio_max"]


def test_staleness_is_told_in_released_versions() -> None:
    batch = [sampled_from(scored, 3 if number < 4 else 9) for number, scored in enumerate(some_batch(0, 8))]
    figures = update(make_state(MODEL, DEFAULT), batch, DEFAULT, RELEASED).metrics
    assert figures["versions_behind_max"] == 2
    assert figures["versions_behind"] == pytest.approx(2 * share_of_tokens(batch[:4], batch))
    assert figures["masked"] == 0
    limited = changed(DEFAULT, {"admission.max_versions_behind": 1})
    figures = update(make_state(MODEL, limited), batch, limited, RELEASED).metrics
    assert figures["masked"] == pytest.approx(share_of_tokens(batch[:4], batch))


def sampled_from(scored: ScoredTurn, version: int) -> ScoredTurn:
    span = VersionSpan(start=0, end=len(scored.turn.token_ids), version=base_ref(version))
    return replace(scored, turn=msgspec.structs.replace(scored.turn, policy_versions=(span,)))


def share_of_tokens(some: list[ScoredTurn], batch: list[ScoredTurn]) -> float:
    return sum(len(each.turn.token_ids) for each in some) / sum(len(each.turn.token_ids) for each in batch)


def test_what_the_baseline_knows_is_told() -> None:
    settings = changed(DEFAULT, {"advantage.baseline": "ema"})
    figures = update(make_state(MODEL, settings), some_batch(0), settings).metrics
    assert figures["explained_variance"] == pytest.approx(0.0, abs=1e-9), "one number for all turns"
    alike = [ScoredTurn(turn, msgspec.structs.replace(reward, value=1.0)) for turn, reward in logged_past(8)]
    assert "explained_variance" not in update(make_state(MODEL, settings), alike, settings).metrics


def test_a_learners_time_is_told_by_what_it_did() -> None:
    """An activity in progress counts up to now; the rest counts for the next version."""
    now_s = iter([0.0, 1.0, 4.0, 4.0, 6.0, 7.0, 8.5, 10.0, 12.0]).__next__
    pace = Pace(now_s)
    for what in ("waiting", "updating"):
        with pace.doing(what):
            pass
    with pace.doing("publishing"):
        figures = pace.take(tokens=40.0, positions=100.0, flops=6 * 10**9, peak_tflops=3.0)
    assert figures == {
        "seconds_waiting": 3.0,
        "seconds_reading": 2.0,
        "seconds_updating": 2.0,
        "seconds_publishing": 1.5,
        "seconds_saving": 0.0,
        "tokens_per_s": 20.0,
        "positions_per_s": 50.0,
        "mfu": pytest.approx(50 * 6e9 / 3e12),
    }
    assert all(map(is_of_machine, figures))
    assert not is_of_machine("loss")


def test_no_time_is_less_than_nothing(make_world: Callable[[str], World]) -> None:
    world = make_world("world")
    learner = world.learner()
    for seed in range(4):
        world.tell(*logged_past(8, seed))
        settle(learner)
    with world.store.look() as view:
        versions = [policy for policy, _ in view.policies.newest(4)]
    learner.close()
    spent_s = [value for each in versions for name, value in each.metrics.items() if name.startswith("seconds_")]
    assert len(spent_s) == 4 * len(DOINGS)
    assert min(spent_s) >= 0


def test_products_are_computed_in_low_precision_on_a_numbered_device() -> None:
    with computing_in(changed(DEFAULT, {"compute.precision": "bfloat16", "device": "cpu:0"})):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
