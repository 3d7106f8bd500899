"""The rows of a model on GPUs, with figures and without."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from model_configs import written
from onward_kernels import token_logprobs_and_entropy

from bench import table
from bench.check import commits
from bench.demos import gpu
from bench.demos.gpu import METRICS, WAYS, of_samples, rows
from bench.updates import gpu_head, gpu_update

SAMPLES = {
    "onward_generated_tokens_total": 6000.0,
    "onward_first_token_seconds_sum": 5.0,
    "onward_first_token_seconds_count": 50.0,
    "onward_learner_updates_total": 4.0,
    'onward_learner_seconds_total{doing="updating"}': 8.0,
    'onward_learner_seconds_total{doing="publishing"}': 2.0,
    'onward_learner{figure="mfu"}': 0.31,
    'onward_feedback_to_served_quantile_seconds{quantile="0.5"}': 7.0,
}


def test_figures_are_those_of_the_service() -> None:
    found = of_samples(SAMPLES, 60.0)
    assert found["tokens sampled"] == 100.0
    assert found["first token, mean"] == 100.0
    assert found["an update"] == 2.0
    assert found["publishing a version"] == 0.5
    assert found["learner, model FLOPs utilisation"] == 0.31
    assert found["learner, positions"] is None
    assert set(found) <= {metric for metric, _ in METRICS}


def test_a_service_that_learned_nothing_has_no_figures_of_learning() -> None:
    found = of_samples({}, 60.0)
    assert found["an update"] is None
    assert found["first token, mean"] is None


def test_what_failed_does_not_hold() -> None:
    made = {row.metric: row.holds for row in rows({"adapters": {"requests that failed": 1.0}})}
    assert not made["adapters: requests that failed"]
    assert made["all weights: requests that failed"]


def test_all_weights_train_at_a_smaller_rate_where_a_card_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, service = written(tmp_path, "llama-3.2-1b"), tmp_path / "service"
    service.mkdir()
    (service / "onward.toml").write_text("learner = {lora.rank = 16, optimizer.learning_rate = 8e-5}\n")
    monkeypatch.setattr(gpu, "total_bytes", lambda: [80 * 10**9])
    assert gpu.settings_of(gpu.ADAPTERS, service, model) == ()
    assert gpu.settings_of(gpu.WHOLE, service, model) == (
        "learner.lora.rank=0",
        "learner.optimizer.learning_rate=8e-06",
    )
    monkeypatch.setattr(gpu, "total_bytes", lambda: [16 * 10**9])
    assert gpu.settings_of(gpu.WHOLE, service, model) is None


def test_without_a_gpu_every_row_stands_without_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    table.report("gpu", list(rows({})))
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert len(written["rows"]) == len(WAYS) * len(METRICS)
    assert all(row["value"] is None and row["holds"] for row in written["rows"])
    assert datetime.fromisoformat(written["day"]).date() <= datetime.now(UTC).date()
    assert commits("gpu", written)  # `make bench-check` takes such a result
    assert "not measured" in capsys.readouterr().out


def test_a_result_names_the_card_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    made = list(gpu_head.compared("a task", "ms", {"whole logits": 2.0, "kernels": 3.0, "Liger": 8.0}, 1.1))
    table.report("gpu_head", made, card="NVIDIA H100")
    written = json.loads((tmp_path / "gpu_head.json").read_text())
    assert written["machine"] == f"NVIDIA H100, {table.machine()}"
    assert [(row["ratio"], row["goal"], row["holds"]) for row in written["rows"]] == [
        (None, None, True),
        (1.5, 1.1, False),
        (4.0, None, True),
    ]


@pytest.mark.parametrize("benchmark", [gpu_head, gpu_update])
def test_what_only_a_gpu_can_measure_says_so(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(benchmark, "report", lambda *_, **__: pytest.fail("the result before stays"))
    with pytest.raises(SystemExit, match="there is no GPU here"):
        benchmark.main()


def test_the_kernels_that_are_measured_are_what_was_written_by_hand() -> None:
    """On a processor, where the same function computes in tiles."""
    torch.manual_seed(0)
    hidden_ND, weight_VD, targets_N = torch.randn(5, 8), torch.randn(5001, 8), torch.randint(0, 5001, (5,))
    expected_N, _ = token_logprobs_and_entropy(hidden_ND, weight_VD, targets_N, torch.ones(5))
    torch.testing.assert_close(gpu_head.whole_logits(hidden_ND, weight_VD, targets_N), expected_N)
