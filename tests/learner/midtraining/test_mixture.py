"""A step's examples: the corpus in the seed's order through a bounded buffer, and a share of sessions.

The same examples come again from any step on."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import read_corpus
from logged_world import MODEL
from rich.progress import Progress
from transformers import AutoTokenizer

from core.errors import ConfigError
from learner.midtraining.corpus import encode
from learner.midtraining.corpus_reader import CorpusReader
from learner.midtraining.mixture import SessionMixture
from learner.sequences.packing import Example, PackedRows, pack, to_tensors
from simulator.tasks.corpus import write_corpus

ROW, ROWS, PAD = 256, 2, 3
WHOLE, SMALL = 1 << 20, 1500


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    write_corpus(directory, 40, seed=3)
    return directory


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sessions") / "sessions.jsonl"
    lines = [{"token_ids": [100 + n] * (10 + n), "spans": [[4, 10 + n]]} for n in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def mixture(
    tokenizer: Any, corpus: Path, buffer: int, sessions: Path | None = None, share: float = 0.0
) -> SessionMixture:
    reader = CorpusReader([corpus], tokenizer, ROW, "refuse")
    replayed = None if sessions is None else CorpusReader([sessions], tokenizer, ROW, "refuse", source=1)
    return SessionMixture(reader, replayed, share, buffer, ROW, ROWS, seed=5)


def batches(made: SessionMixture) -> Iterator[PackedRows]:
    return made.batches(PAD, Progress(disable=True))


def same(first: PackedRows, second: PackedRows) -> bool:
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def examples_of(found: list[PackedRows]) -> Counter[tuple[int, ...]]:
    """Count the examples in the rows; positions restart at each example."""
    counts = Counter[tuple[int, ...]]()
    for batch in found:
        for ids, positions, sources in zip(batch.ids_RT, batch.positions_RT, batch.sources_RT, strict=True):
            size = int((sources >= 0).sum())
            starts = [*(positions[:size] == 0).nonzero().flatten().tolist(), size]
            counts.update(tuple(ids[a:b].tolist()) for a, b in pairwise(starts))
    return counts


def all_examples(corpus: Path, tokenizer: Any) -> list[Example]:
    return [encode(tokenizer, document, where) for where, document in read_corpus(corpus)]


def test_a_corpus_that_the_buffer_holds_is_shuffled_whole_every_epoch(corpus: Path, tokenizer: Any) -> None:
    """One generator draws a permutation for each epoch, by definition."""
    examples = all_examples(corpus, tokenizer)
    lengths, generator = [len(example.token_ids) for example in examples], torch.Generator().manual_seed(5)
    found = batches(mixture(tokenizer, corpus, WHOLE))
    for _ in range(3):
        rows = pack(lengths, torch.randperm(len(examples), generator=generator).tolist(), ROW)
        for start in range(0, len(rows), ROWS):
            wanted = to_tensors([[examples[i] for i in row] for row in rows[start : start + ROWS]], ROW, PAD)
            assert same(next(found), wanted)


def test_through_a_small_buffer_an_epoch_still_holds_everything_once(corpus: Path, tokenizer: Any) -> None:
    made = mixture(tokenizer, corpus, SMALL)
    epoch: list[PackedRows] = []
    for batch in batches(made):
        if made.state_dict()["corpus"]["epoch"] > 0:
            break
        epoch.append(batch)
    wanted = Counter(tuple(each.token_ids) for each in all_examples(corpus, tokenizer))
    assert sum(map(len, wanted)) > 2 * SMALL
    assert not examples_of(epoch) - wanted
    assert not wanted - examples_of(epoch)
    others = [batch for batch, _ in zip(batches(mixture(tokenizer, corpus, WHOLE)), epoch, strict=False)]
    assert not all(same(one, other) for one, other in zip(epoch, others, strict=True)), "the order is another"


def test_no_more_is_in_memory_than_the_buffer_holds(
    corpus: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    real = SessionMixture._fill

    def watched(self: SessionMixture, progress: Progress) -> list[Example]:
        examples = real(self, progress)
        sizes.append(sum(len(example.token_ids) for example in examples))
        return examples

    monkeypatch.setattr(SessionMixture, "_fill", watched)
    for _ in islice(batches(mixture(tokenizer, corpus, SMALL)), 30):
        pass
    assert len(sizes) > 3
    assert max(sizes) <= SMALL + ROW


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("buffer", [WHOLE, SMALL])
def test_it_goes_on_from_any_batch(corpus: Path, sessions: Path, tokenizer: Any, buffer: int, share: float) -> None:
    """The run takes more than an epoch; the state is what a checkpoint keeps."""

    def make() -> SessionMixture:
        return mixture(tokenizer, corpus, buffer, sessions if share else None, share)

    whole, wanted, states = make(), [], [make().state_dict()]
    for batch in islice(batches(whole), 24):
        wanted.append(batch)
        states.append(whole.state_dict())
    assert states[-1]["corpus"]["epoch"] >= 1
    for number in (0, 1, 2, 5, 9, 10, 11, 17, 23):
        resumed = make()
        resumed.load_state_dict(states[number])
        rest = list(islice(batches(resumed), 24 - number))
        assert all(same(one, other) for one, other in zip(rest, wanted[number:], strict=True))
        assert resumed.state_dict()["tokens"] == states[-1]["tokens"]
        assert resumed.state_dict()["corpus"]["counts"] == states[-1]["corpus"]["counts"]


@pytest.mark.parametrize("buffer", [WHOLE, SMALL])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_sessions_have_their_share_of_the_tokens(
    corpus: Path, sessions: Path, tokenizer: Any, buffer: int, share: float
) -> None:
    made = mixture(tokenizer, corpus, buffer, sessions, share)
    counts = torch.zeros(2)
    for batch in batches(made):
        if made.state_dict()["corpus"]["epoch"] > 1:
            break
        counts += torch.bincount(batch.sources_RT[batch.sources_RT >= 0], minlength=2)
    assert counts[1] / counts.sum() == pytest.approx(share, abs=0.01)


def test_of_sessions_all_come_before_any_comes_again(corpus: Path, sessions: Path, tokenizer: Any) -> None:
    made = mixture(tokenizer, corpus, WHOLE, sessions, 0.4)
    whole = list(islice(batches(made), 12))
    ours = Counter(ids[0] for ids in examples_of(whole).elements() if len(set(ids)) == 1)
    assert made.state_dict()["taken"] == 12
    assert set(ours) == set(range(100, 120))
    assert max(ours.values()) - min(ours.values()) <= 2


def test_a_corpus_without_documents_is_refused(tmp_path: Path, sessions: Path, corpus: Path, tokenizer: Any) -> None:
    (tmp_path / "part.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no documents"):
        next(batches(mixture(tokenizer, tmp_path, WHOLE)))
    with pytest.raises(ConfigError, match="nothing in the sessions"):
        next(batches(mixture(tokenizer, corpus, WHOLE, tmp_path / "part.jsonl", 0.5)))


def test_a_line_beyond_the_buffer_is_refused_before_the_first_step(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "part.jsonl").write_text('{"text": "def f(x): return x"}\n' * 50 + "{\n")
    with pytest.raises(ConfigError, match=r"part\.jsonl:51: no JSON"):
        next(batches(mixture(tokenizer, tmp_path, 100)))


def test_what_is_too_long_is_split_and_counted(tmp_path: Path, tokenizer: Any) -> None:
    texts = ["short", "x", "", "def f(x):\n    return x + 1\n" * 60]
    (tmp_path / "part.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    reader = CorpusReader([tmp_path], tokenizer, ROW, "split")
    found = [reader.next() for _ in texts]
    assert reader.next() is None
    windows = len(found[3] or [])
    assert windows > 2
    assert dict(reader.counts) == {"documents": 4, "too_short": 2, "split": 1, "windows": windows}
    for _ in texts:
        reader.next()
    assert reader.counts["documents"] == 4, "those of the first epoch"
    with pytest.raises(ConfigError, match=r"part\.jsonl:4: \d+ tokens, a row holds 256"):
        list(iter(CorpusReader([tmp_path], tokenizer, ROW, "refuse").next, None))
