"""Midtraining gives the same bits for the same seed, also when interrupted; bad corpora are named."""

from pathlib import Path

import pytest
from logged_world import MODEL
from transformers import AutoModelForCausalLM

from core.errors import CheckpointError
from learner.midtraining import run as module
from learner.midtraining.run import MidtrainOptions, midtrain
from learner.sequences.packing import pack
from simulator.tasks.corpus import write_corpus

OPTIONS = MidtrainOptions(steps=4, seed=1, rows=2, save_every=2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "corpus", 80, seed=3)
    return tmp_path / "corpus"


def test_the_same_seed_gives_the_same_weights(corpus: Path, tmp_path: Path) -> None:
    first = midtrain(corpus, tmp_path / "a", MODEL, OPTIONS)
    assert midtrain(corpus, tmp_path / "b", MODEL, OPTIONS) == first
    AutoModelForCausalLM.from_pretrained(tmp_path / "a")


def test_an_interrupted_run_ends_in_the_same_bits(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = midtrain(corpus, tmp_path / "whole", MODEL, OPTIONS)
    real, calls = module.token_losses, 0

    def dying(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "token_losses", dying)
    with pytest.raises(KeyboardInterrupt):
        midtrain(corpus, tmp_path / "parted", MODEL, OPTIONS)
    assert midtrain(corpus, tmp_path / "parted", MODEL, OPTIONS, resume=True) == whole


def test_a_corrupt_checkpoint_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "midtrain.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"midtrain\.pt"):
        midtrain(corpus, tmp_path / "out", MODEL, OPTIONS, resume=True)


def test_every_example_is_packed_once() -> None:
    lengths = [3, 7, 2, 8, 5, 1]
    rows = pack(lengths, [5, 3, 1, 0, 2, 4], row_tokens=8)
    assert sorted(index for row in rows for index in row) == list(range(6))
    assert all(sum(lengths[index] for index in row) <= 8 for row in rows)
