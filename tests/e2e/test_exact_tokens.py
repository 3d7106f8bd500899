"""Recorded tokens are the sampled ones, also across swaps: re-scored with stock transformers in float32."""

import json
from itertools import count
from pathlib import Path

import pytest
from rescoring import all_turns, published_model, worst_difference
from service_tree import Service, simulate

from core.events import Completion
from core.ids import PolicyRef
from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(900)  # processes that import torch, on whatever machine
TOLERANCE = 1e-4
SPOKE = 3  # versions, more than
SETTINGS = {
    "learner.batch.turns": 16,
    "learner.batch.min_turns": 8,
    "serving.versions.keep": 100_000,
    "serving.versions.min_swap_interval_s": 0.05,
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a service that simulated users taught, and that has ended."""
    root = tmp_path_factory.mktemp("lived")
    (root / "service").mkdir()
    service = Service(root / "service", SETTINGS).start()
    try:
        for seed in count():  # on a busy machine a version takes longer, and more of their time is needed
            simulate(service, root / f"demo{seed}", seconds=12, rate=12, seed=seed).communicate(timeout=600)
            report = json.loads((root / f"demo{seed}" / "report.json").read_text())
            assert report["failed_requests"] == 0
            if has_lived(service):
                break
    finally:
        service.stop()
    return service.directory


def has_lived(service: Service) -> bool:
    """Return whether several versions spoke, and a turn was in flight during a swap: chance decides over both."""
    foundation = open_foundation(service.directory, service.overrides)
    try:
        spoken = [{span.version for span in turn.policy_versions} for turn in all_turns(foundation)]
    finally:
        foundation.close()
    return len(set().union(*spoken)) > SPOKE and any(len(versions) > 1 for versions in spoken)


def test_every_token_rescores_under_its_version(lived: Path) -> None:
    foundation = open_foundation(lived)
    spoken = all_turns(foundation)
    by_version: dict[PolicyRef, list[Completion]] = {}
    for turn in spoken:
        assert sum(span.end - span.start for span in turn.policy_versions) == len(turn.token_ids) == len(turn.logprobs)
        for version in {span.version for span in turn.policy_versions}:
            by_version.setdefault(version, []).append(turn)
    assert len(by_version) > SPOKE
    assert any(len(turn.policy_versions) > 1 for turn in spoken), "no turn was in flight during a swap"
    for version, some in by_version.items():
        assert worst_difference(published_model(foundation, version), version, some[:60]) <= TOLERANCE
    continued = [turn for turn in spoken if turn.parent_id is not None]
    parents = {turn.inference_id: turn for turn in spoken}
    assert continued
    for turn in continued:
        before = parents[turn.parent_id]  # type: ignore[index]
        history = before.prompt_token_ids + before.token_ids
        assert turn.prompt_token_ids[: len(history)] == history
    foundation.close()
