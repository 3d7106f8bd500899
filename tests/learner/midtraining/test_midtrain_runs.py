"""A midtraining run as a whole: repeatable over epochs and interruptions, with a stock model as its result."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from logged_world import MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer, MambaConfig

from core.errors import CheckpointError, ConfigError
from core.model.weights_digest import digest_of_shards
from learner.midtraining import run as module
from learner.midtraining.run import MidtrainOptions, midtrain, schedule
from simulator.tasks.corpus import write_corpus

OPTIONS = MidtrainOptions(steps=6, seed=1, rows=2, warmup_steps=2, save_every=3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus so small that six steps are more than an epoch."""
    directory = tmp_path_factory.mktemp("corpus")
    write_corpus(directory / "corpus", 16, seed=3)
    return directory / "corpus"


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return what a run made, and the digest that it told."""
    output = tmp_path_factory.mktemp("whole")
    return output, midtrain(corpus, output, MODEL, OPTIONS)


@pytest.fixture(scope="module")
def interrupted_late(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("late") / "out"
    with pytest.MonkeyPatch.context() as patch:
        interrupted(corpus, output, patch, 4)
    return output


@pytest.fixture
def parted(interrupted_late: Path, tmp_path: Path) -> Path:
    """Return what a run left that was interrupted a while after its checkpoint."""
    return shutil.copytree(interrupted_late, tmp_path / "out")


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Interrupt the run in the middle of this step (from 0)."""
    real, done = module.token_losses, 0

    def dying(*arguments: object) -> object:
        nonlocal done
        if done == step:
            raise KeyboardInterrupt
        done += 1
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "token_losses", dying)


def interrupted(corpus: Path, output: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            midtrain(corpus, output, MODEL, OPTIONS)


def test_a_result_is_a_stock_model_of_the_digest_that_was_told(
    corpus: Path, whole: tuple[Path, str], tmp_path: Path
) -> None:
    output, digest = whole
    assert digest == digest_of_shards(sorted(output.glob("*.safetensors")))
    assert digest != digest_of_shards([MODEL / "model.safetensors"]), "something was learned"
    assert AutoModelForCausalLM.from_pretrained(output).dtype == torch.bfloat16
    ours, theirs = AutoTokenizer.from_pretrained(output), AutoTokenizer.from_pretrained(MODEL)
    talk = [{"role": "user", "content": "hi"}]
    assert ours.apply_chat_template(talk, tokenize=False) == theirs.apply_chat_template(talk, tokenize=False)
    assert ours("def f(x):").input_ids == theirs("def f(x):").input_ids
    assert not (output / "midtrain.pt").exists()
    assert midtrain(corpus, tmp_path / "other", MODEL, replace(OPTIONS, seed=2)) != digest


@pytest.mark.parametrize("step", [1, 3, 5])
def test_an_interrupted_run_ends_in_the_same_bits_over_epochs(
    corpus: Path, whole: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The step is before the first checkpoint, just after it, or a while after it."""
    interrupted(corpus, tmp_path / "parted", monkeypatch, step)
    assert (tmp_path / "parted" / "midtrain.pt").exists() == (step >= OPTIONS.save_every)
    assert midtrain(corpus, tmp_path / "parted", MODEL, OPTIONS, resume=True) == whole[1]


def test_a_run_that_does_not_resume_begins_anew(corpus: Path, whole: tuple[Path, str], parted: Path) -> None:
    assert midtrain(corpus, parted, MODEL, OPTIONS) == whole[1]


def test_a_run_that_resumes_does_only_what_is_left(corpus: Path, parted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(monkeypatch, OPTIONS.steps - OPTIONS.save_every)  # a further step would end it
    midtrain(corpus, parted, MODEL, OPTIONS, resume=True)


def test_a_checkpoint_is_resumed_by_its_own_options_alone(corpus: Path, parted: Path) -> None:
    for other in ({"seed": 2}, {"steps": 7}, {"learning_rate": 1e-3}):
        with pytest.raises(ConfigError, match=r"midtrain\.pt: made with other options: .*\"steps\": 6"):
            midtrain(corpus, parted, MODEL, replace(OPTIONS, **other), resume=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_checkpoint_that_was_cut_short_is_named(corpus: Path, parted: Path, share: float) -> None:
    checkpoint = parted / "midtrain.pt"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"out/midtrain\.pt"):
        midtrain(corpus, parted, MODEL, OPTIONS, resume=True)


def test_an_example_that_no_row_holds_is_named(tmp_path: Path) -> None:
    (tmp_path / "part.jsonl").write_text('{"text": "fine"}\n' + json.dumps({"text": "word " * 300}) + "\n")
    with pytest.raises(ConfigError, match=r"part\.jsonl:2: \d+ tokens, a row holds 256"):
        midtrain(tmp_path, tmp_path / "out", MODEL, OPTIONS)


def test_a_folder_without_a_model_is_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        midtrain(corpus, tmp_path / "out", tmp_path, OPTIONS)


def test_a_model_that_mixes_the_documents_of_a_row_is_named(corpus: Path, tmp_path: Path) -> None:
    init = tmp_path / "init"
    MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=4096).save_pretrained(init)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, init)
    with pytest.raises(ConfigError, match=r"MambaForCausalLM cannot be midtrained: .*carry a state"):
        midtrain(corpus, tmp_path / "out", init, OPTIONS)
    assert not (tmp_path / "out").exists()


def test_the_rate_warms_up_stays_and_falls() -> None:
    options = MidtrainOptions(steps=100, seed=0, warmup_steps=10)
    shares = [schedule(step, options) for step in range(100)]
    assert shares[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert set(shares[10:51]) == {1.0}
    assert shares[50:] == sorted(shares[50:], reverse=True)
    assert shares[-1] == pytest.approx(0.05, abs=0.02)
