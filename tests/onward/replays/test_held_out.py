"""Held-out users judge a replay's candidate: they would earn more with it, less, or it cannot be told."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logged_world import MODEL, START, make_reward, make_turn
from safetensors.torch import load_file, save_file

from core.events import Completion, PolicyVersion, Reward
from core.ids import UserHash
from core.settings import ComputeSettings, LearnerSettings
from learner.model.policy_model import PolicyModel
from learner.off_policy.estimators import off_policy
from learner.off_policy.log_ratios import logged_turns
from learner.sequences.scored import ScoredTurn
from onward.replays.estimates.held_out import figures, judge
from onward.replays.estimates.turns_kept import compare_on, kept
from onward.wiring.foundation import Foundation, open_offline
from serving.evals.verdicts import of_users

USERS = 72  # three for each of the answers there are
SHARPER = 1.1  # the candidate's logits, in units of the logged policy's
NEAR = 1e-5  # of gains of order one: log-probabilities in float32, added up in another order
SETTINGS = LearnerSettings(compute=ComputeSettings(micro_batch_tokens=4096))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Foundation]:
    """Yield a replay's directory whose newest version has sharper preferences than the anchor."""
    with closing(open_offline(tmp_path / "replay")) as target:
        weights = tmp_path / "model.safetensors"
        tensors = load_file(MODEL / "model.safetensors")
        save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"] * SHARPER}, weights)
        with target.store.work() as work:
            version = work.policies.allocate(START)
        ref = target.weights.publish(version, [weights], None)
        fields: dict[str, Any] = {"policy": "tiny", "parent": None, "manifest": None, "created_at": START}
        policy = PolicyVersion(version=version, digest=ref.digest, weights=ref.path, **fields)
        with target.store.work() as work:
            work.policies.put(policy)
        yield target


@pytest.fixture
def held(target: Foundation) -> list[Completion]:
    """Log turns of one user each."""
    logged = [make_turn(n, user_id=UserHash(f"user {n}"), workload=("write", "ask")[n % 2]) for n in range(USERS)]
    with target.store.work() as work:
        work.turns.put(logged)
    return logged


def likelier(held: list[Completion], tmp_path: Path) -> np.ndarray:
    """Return which turns rose in probability under the candidate by more than the median."""
    candidate = PolicyModel(MODEL, "cpu")
    candidate.load([tmp_path / "model.safetensors"])
    batch = [ScoredTurn(turn, make_reward(turn, float(n % 2))) for n, turn in enumerate(held)]
    ratio_N = logged_turns(candidate, batch, 4096, "cpu").log_ratio_N
    return ratio_N > np.median(ratio_N)


def rewards(held: list[Completion], values: np.ndarray) -> list[Reward]:
    return [make_reward(turn, float(value)) for turn, value in zip(held, values, strict=True)]


@pytest.mark.parametrize(("likes_it", "action"), [(True, "pass"), (False, "refuse")])
def test_users_who_like_what_it_prefers_let_it_pass_and_others_refuse_it(
    target: Foundation, held: list[Completion], tmp_path: Path, likes_it: bool, action: str
) -> None:
    said = rewards(held, np.where(likelier(held, tmp_path) == likes_it, 1.0, -0.5))
    found = judge(target, MODEL, said, SETTINGS)
    assert (found["turns"], found["unusable"], found["refused"]) == (USERS, 0, None)
    assert found["effective_turns"] > 40
    assert found["gains"].keys() == found["values"].keys() == {"stated", "line", "snips"}
    for gain in found["gains"].values():
        assert gain["low"] < gain["value"] < gain["high"]
        assert (gain["value"] > 0) == likes_it
    verdict = of_users(found, 0.05)
    assert verdict.action == action, verdict
    assert verdict.figures["gain_value"] == found["gains"]["stated"]["value"]
    assert ("two estimates" in verdict.why) == found["bends"]
    assert found["says"].startswith(f"The candidate's gain would have been {found['gains']['stated']['value']:+.3f} ")


def test_the_same_users_say_the_same_in_any_order(target: Foundation, held: list[Completion]) -> None:
    said = rewards(held, np.where(np.arange(USERS) % 5, 1.0, -0.5))
    found = judge(target, MODEL, said, SETTINGS)
    assert judge(target, MODEL, said, SETTINGS) == found
    in_order = kept(target.layout.root)
    again = judge(target, MODEL, said[::-1], SETTINGS)
    assert again["gains"]["stated"] == pytest.approx(found["gains"]["stated"], abs=NEAR)
    backwards = kept(target.layout.root)
    assert in_order is not None
    assert backwards is not None
    assert in_order.ids == tuple(sorted(str(turn.inference_id) for turn in held)), "beside the report, a row each"
    assert figures(off_policy(in_order.turns))["gains"]["stated"] == pytest.approx(found["gains"]["stated"], abs=NEAR)
    alike = compare_on(in_order, backwards)
    assert (alike.refused, alike.differences["stated"].value) == (None, pytest.approx(0.0, abs=NEAR))


def test_where_no_turn_can_be_learned_from_they_cannot_say(target: Foundation, held: list[Completion]) -> None:
    found = judge(target, MODEL, [], SETTINGS)
    assert (found["turns"], found["unusable"], found["gains"]) == (0, 0, {})
    assert found["says"] == f"These turns cannot say what the candidate would have earned: {found['refused']}."
    assert of_users(found, 0.05).action == "hold"
