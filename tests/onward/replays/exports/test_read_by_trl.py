"""TRL's trainers take exported files as they are, and a step on them does what each form is for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, load_dataset
from told_past import a_week, keep
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

from onward.directory.layout import SHIPPED_MODEL
from onward.replays.exports.columns import COLUMNS
from onward.replays.exports.samples import Wanted, export_samples

pytestmark = pytest.mark.filterwarnings("ignore")  # those of libraries of others

STEPS = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "max_steps": 3,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 2,
    "logging_steps": 1,
    "dataset_num_proc": None,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("exported")
    week = keep(root / "week", a_week())
    files = {form: root / f"{form}.parquet" for form in COLUMNS}
    for form, out in files.items():
        export_samples(week, out, Wanted(form), {})
    return files


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def loaded(path: Path, cache: Path) -> Dataset:
    return load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(cache))


def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED_MODEL)


def log_likelihood(policy: Any, prompt: list[int], answer: list[int]) -> float:
    with torch.inference_mode():
        logprobs = policy.eval()(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    return float(sum(logprobs[len(prompt) + place - 1, token] for place, token in enumerate(answer)))


@pytest.mark.parametrize("form", ["sft", "tokens"])
def test_a_step_of_sft_makes_what_users_kept_more_likely(files: dict[str, Path], tmp_path: Path, form: str) -> None:
    rows, policy = loaded(files["sft"], tmp_path), model()
    before = [log_likelihood(policy, row["prompt_token_ids"], row["token_ids"]) for row in rows]
    trainer = SFTTrainer(
        model=policy,
        args=SFTConfig(output_dir=str(tmp_path), completion_only_loss=True, **STEPS),
        train_dataset=loaded(files[form], tmp_path),
        processing_class=tokenizer(),
    )
    if form == "tokens":  # they stay what was sampled, and the prompt is not learned
        exact = loaded(files[form], tmp_path)
        assert trainer.train_dataset["input_ids"] == exact["input_ids"]
        assert trainer.train_dataset["labels"] == exact["labels"]
    trainer.train()
    after = [log_likelihood(trainer.model, row["prompt_token_ids"], row["token_ids"]) for row in rows]
    assert sum(after) > sum(before) + 1


def test_a_step_of_dpo_prefers_what_users_kept(files: dict[str, Path], tmp_path: Path) -> None:
    rows, policy = loaded(files["pairs"], tmp_path), model()
    before = [margin(policy, row) for row in rows]
    trainer = DPOTrainer(
        model=policy,
        args=DPOConfig(output_dir=str(tmp_path), **STEPS),
        train_dataset=loaded(files["pairs"], tmp_path),
        processing_class=tokenizer(),
    )
    trainer.train()
    assert len(trainer.train_dataset) == len(rows) == 2
    assert all(
        after > earlier + 0.1
        for earlier, after in zip(before, (margin(trainer.model, row) for row in rows), strict=True)
    )


def margin(policy: Any, row: dict[str, Any]) -> float:
    chosen, rejected = (
        log_likelihood(policy, row["prompt_token_ids"], row[f"{each}_token_ids"]) for each in ("chosen", "rejected")
    )
    return chosen - rejected


def test_a_step_of_kto_parts_the_good_from_the_bad(files: dict[str, Path], tmp_path: Path) -> None:
    rows, policy = loaded(files["kto"], tmp_path), model()
    before = [log_likelihood(policy, row["prompt_token_ids"], row["token_ids"]) for row in rows]
    trainer = KTOTrainer(
        model=policy,
        args=KTOConfig(output_dir=str(tmp_path), **STEPS),
        train_dataset=loaded(files["kto"], tmp_path),
        processing_class=tokenizer(),
    )
    trainer.train()
    after = [log_likelihood(trainer.model, row["prompt_token_ids"], row["token_ids"]) for row in rows]
    gains = {
        label: [b - a for a, b, row in zip(before, after, rows, strict=True) if row["label"] is label]
        for label in (True, False)
    }
    assert {label: len(each) for label, each in gains.items()} == {True: 3, False: 1}
    assert min(gains[True]) > max(gains[False])
