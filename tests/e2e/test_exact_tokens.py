"""Recorded tokens are the sampled ones, also across swaps: re-scored with stock transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rescoring import all_turns, published_model, worst_difference
from service_tree import Service, simulate

from core.events import Completion
from core.ids import PolicyRef
from onward.wiring.foundation import open_foundation

MakeService = Callable[..., Service]
TOLERANCE = 1e-4


@pytest.mark.timeout(300)
def test_every_token_rescores_under_its_version(make_service: MakeService, tmp_path: Path) -> None:
    settings = {"learner__batch__turns": 16, "learner__batch__min_turns": 8, "serving__versions__keep": 100_000}
    service = make_service(**settings, serving__versions__min_swap_interval_s=0.05).start()
    driver = simulate(service, tmp_path / "demo", seconds=15, rate=12)
    driver.communicate(timeout=120)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["failed_requests"] == 0
    service.stop()

    foundation = open_foundation(service.directory)
    spoken = all_turns(foundation)
    by_version: dict[PolicyRef, list[Completion]] = {}
    for turn in spoken:
        assert sum(span.end - span.start for span in turn.policy_versions) == len(turn.token_ids) == len(turn.logprobs)
        for version in {span.version for span in turn.policy_versions}:
            by_version.setdefault(version, []).append(turn)
    assert len(by_version) > 3
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
