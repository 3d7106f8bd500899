"""What users lived with a service that learned: exact to the token, and the same whenever it is replayed.

Recorded tokens are the sampled ones, also across swaps: they are re-scored with stock transformers in float32. The same
log, spec, settings and seed give the same rewards and the same weights."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from rescoring import all_turns, published_model, worst_difference
from service_tree import Service, simulate

from core.events import Completion
from core.ids import PolicyRef
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(900)  # processes that import torch, on whatever machine
TOLERANCE = 1e-4
MADE, SPOKE = 5, 3  # versions, more than; what is made may be superseded before it speaks
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
            simulate(service, root / f"demo{seed}", seconds=12, rate=12, seed=seed).communicate(timeout=300)
            report = json.loads((root / f"demo{seed}" / "report.json").read_text())
            assert report["failed_requests"] == 0
            if report["versions"] > MADE and has_lived(service):
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


def test_a_replay_is_the_same_twice_and_otherwise_not(lived: Path, tmp_path: Path) -> None:
    """Once in a process of its own, and once in this one."""
    command = [sys.executable, "-m", "onward", "replay", str(lived), "--out", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert first["rewards"] > 50
    assert first["version"] > 3
    second = replay_log(lived, tmp_path / "b", None, None)
    assert first == json.loads(json.dumps(second, default=str)) | {"weights": first["weights"]}

    harsh = tmp_path / "harsh.toml"
    harsh.write_text('[outcomes.accepted]\ntype = "boolean"\nweight = 0.5\ndecides = true\n')
    other = replay_log(lived, tmp_path / "c", harsh, None)
    assert other["rewards_digest"] != first["rewards_digest"]
    assert other["weights_digest"] != first["weights_digest"]
    assert replay_log(lived, tmp_path / "d", None, 7)["weights_digest"] != first["weights_digest"]
