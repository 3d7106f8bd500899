"""Midtraining on several sources that do not fit into memory.

An interruption at any step gives the same bits, and the report says what was trained on."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import read_corpus
from logged_world import MODEL
from transformers import AutoTokenizer

from core.errors import ConfigError, OnwardError
from learner.midtraining import run as module
from learner.midtraining.losses import LossesBySource
from learner.midtraining.run import MidtrainOptions, Sessions, midtrain
from learner.sequences.packing import Example, to_tensors
from learner.sequences.resemblance import KeptOut, SuiteSolutions
from simulator.tasks.corpus import write_corpus

OPTIONS = MidtrainOptions(steps=6, seed=1, rows=2, warmup_steps=2, save_every=1, buffer_tokens=1200, mix=0.3)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return corpora so small that six steps are more than an epoch; the second has a text of many windows."""
    directory = tmp_path_factory.mktemp("corpora")
    write_corpus(directory / "talk", 12, seed=3)
    (directory / "texts").mkdir()
    texts = ["def f(x): return x", "def g(x):\n    return f(x) + 1\n" * 40]
    (directory / "texts" / "part.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [directory / "talk", directory / "texts"]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    path = tmp_path_factory.mktemp("sessions") / "sessions.jsonl"
    lines = [{"token_ids": [100 + n] * 30, "spans": [[10, 30]]} for n in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Sessions(path, {"counts": {"taken": 5}})


def train(corpora: list[Path], output: Path, sessions: Sessions | None, **changes: Any) -> tuple[str, dict[str, Any]]:
    resume = changes.pop("resume", False)
    init = changes.pop("init", MODEL)
    options = replace(OPTIONS, **{"long": "split", **changes})
    digest = midtrain(corpora[0], output, init, options, also=corpora[1:], sessions=sessions, resume=resume)
    return digest, json.loads((output / "report.json").read_text())


Trained = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def whole(corpora: list[Path], sessions: Sessions, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(corpora, tmp_path_factory.mktemp("whole"), sessions)


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Interrupt a run in the middle of this step (from 0)."""
    real, done = module.token_losses, 0

    def dying(*arguments: Any) -> Any:
        nonlocal done
        if done == step:
            raise KeyboardInterrupt
        done += 1
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "token_losses", dying)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize(
    "step", [step if step in (0, 2, 5) else pytest.param(step, marks=pytest.mark.deep) for step in range(6)]
)
def test_interrupted_at_any_step_it_ends_in_the_same_bits_and_report(
    corpora: list[Path],
    sessions: Sessions,
    whole: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    with interrupted(monkeypatch, step):
        train(corpora, tmp_path / "parted", sessions)
    assert (tmp_path / "parted" / "midtrain.pt").exists() == (step > 0)
    assert train(corpora, tmp_path / "parted", sessions, resume=True) == whole


def test_interrupted_while_its_result_is_written_it_ends_in_the_same_bits_and_report(
    corpora: list[Path], sessions: Sessions, whole: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "digest_of_shards", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(corpora, tmp_path / "parted", sessions)
    assert train(corpora, tmp_path / "parted", sessions, resume=True) == whole


def interrupt(_: object) -> str:
    raise KeyboardInterrupt


def test_chance_goes_on_where_it_was(corpora: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained model has dropout if its configuration says so."""
    init = tmp_path / "init"
    init.mkdir()
    for path in MODEL.glob("*.json*"):
        (init / path.name).write_bytes(path.read_bytes())
    (init / "chat_template.jinja").write_bytes((MODEL / "chat_template.jinja").read_bytes())
    config = json.loads((MODEL / "config.json").read_text()) | {"attention_dropout": 0.2}
    (init / "config.json").write_text(json.dumps(config))
    whole = train(corpora, tmp_path / "whole", None, init=init, mix=0.0)
    with interrupted(monkeypatch, 3):
        train(corpora, tmp_path / "parted", None, init=init, mix=0.0)
    assert train(corpora, tmp_path / "parted", None, init=init, mix=0.0, resume=True) == whole


def test_a_run_goes_on_with_the_files_that_it_began_with_alone(
    corpora: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [shutil.copytree(each, tmp_path / each.name) for each in corpora]
    with interrupted(monkeypatch, 1):
        train(ours, tmp_path / "out", None, mix=0.0)
    with (ours[1] / "part.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(ConfigError, match=r"midtrain\.pt: made from other files: .*part\.jsonl"):
        train(ours, tmp_path / "out", None, mix=0.0, resume=True)


def test_the_report_says_what_was_trained_on(corpora: list[Path], sessions: Sessions, tmp_path: Path) -> None:
    digest, report = train(corpora, tmp_path / "out", sessions, steps=20, buffer_tokens=1 << 20)
    sources = report["sources"]
    assert report["weights_digest"] == digest
    assert list(sources) == [*map(str, corpora), "sessions"]
    assert report["read"]["documents"] == len(list(read_corpus(corpora[0]))) + 2
    assert (report["read"]["split"], report["read"]["too_short"]) == (1, 0)
    assert report["read"]["windows"] > 1
    assert report["sessions"]["counts"] == {"taken": 5}
    assert report["read"]["session_epochs"] >= 1
    assert sum(source["share"] for source in sources.values()) == pytest.approx(1)
    assert sources["sessions"]["share"] == pytest.approx(0.3, abs=0.05)
    assert sources["sessions"]["weight"] == pytest.approx(sources["sessions"]["tokens"] * 20 / 30)
    assert [each["step"] for each in report["losses"]] == list(range(1, 21))
    first, last = (report["losses"][place]["by_source"]["sessions"] for place in (0, -1))
    assert last < first / 2, "a few tokens over and over are soon known"
    assert sources["sessions"]["loss"] == last


def test_losses_are_means_by_weight_of_each_source() -> None:
    rows = [[Example([5, 6, 7], [0.0, 1.0, 0.5], 0), Example([8, 9], [1.0, 1.0], 1)], [Example([8], [1.0], 1)]]
    batch = to_tensors(rows, 6, pad_id=3)
    losses = LossesBySource(["a", "b"], steps=2)
    for step, scale in enumerate((1.0, 3.0)):
        losses.add(step, scale * torch.tensor([[2.0, 4.0, 99.0, 6.0, 99.0], [99.0] * 5]), batch)
    report = losses.report()
    assert report["losses"][0]["loss"] == pytest.approx((2 + 0.5 * 4 + 6) / 2.5)
    assert report["losses"][1] == {
        "step": 2,
        "loss": pytest.approx(3 * (2 + 0.5 * 4 + 6) / 2.5),
        "by_source": {"a": pytest.approx(3 * 4 / 1.5), "b": pytest.approx(18.0)},
    }
    assert report["sources"]["a"] == {"tokens": 6, "weight": 3.0, "share": 0.5, "loss": pytest.approx(8.0)}
    assert report["sources"]["b"] == {"tokens": 6, "weight": 2.0, "share": 0.5, "loss": pytest.approx(18.0)}


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_what_was_kept(
    corpora: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = module.token_losses, 0

    def spoilt(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        return real(*arguments) * (float("nan") if done == 4 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(module, "token_losses", spoilt)
        with pytest.raises(OnwardError, match="step 4: the loss is nan"):
            train(corpora, tmp_path / "out", None, mix=0.0)
    whole = train(corpora, tmp_path / "whole", None, mix=0.0)
    assert train(corpora, tmp_path / "out", None, mix=0.0, resume=True) == whole


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mix": 1.0}, "--mix 1: want a share"),
        ({"mix": -0.1}, "--mix -0.1: want a share"),
        ({"row_tokens": 1}, "--row-tokens 1: want at least 2"),
        ({"steps": 0}, "--steps 0: want at least 1"),
        ({"row_tokens": 513}, "--row-tokens 513: the model's context is 512"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    corpora: list[Path], tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        train(corpora, tmp_path / "out", None, **{"mix": 0.0, **changes})


def test_documents_that_tell_a_solution_are_left_out_and_counted(corpora: list[Path], tmp_path: Path) -> None:
    """What is trained on is the very same without them, and the same run knows its suites again."""
    solution = "def secret(xs):\n    return sorted(x for x in xs if x % 7 == 3)"
    kept_out = KeptOut([SuiteSolutions("ours", "d1", {"secret": solution})])
    call = {"id": "c", "type": "function", "function": {"name": "edit", "arguments": json.dumps({"content": solution})}}
    told = [
        {"text": f"# a file\n{solution}\n"},
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": solution}]},
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]},
        {"token_ids": AutoTokenizer.from_pretrained(MODEL)(solution).input_ids, "spans": [[0, 4]]},
    ]
    texts = corpora[1] / "part.jsonl"
    (tmp_path / "told").mkdir()
    mixed = tmp_path / "told" / "part.jsonl"
    mixed.write_text(texts.read_text() + "".join(json.dumps(each) + "\n" for each in told))

    def run(corpus: Path, output: str, kept_out: KeptOut) -> tuple[str, Any]:
        made = replace(OPTIONS, long="split", mix=0.0, steps=2, buffer_tokens=1 << 16)
        digest = midtrain(corpus, tmp_path / output, MODEL, made, kept_out)
        return digest, json.loads((tmp_path / output / "report.json").read_text())

    plain, _ = run(texts, "plain", KeptOut())
    digest, report = run(mixed, "out", kept_out)
    assert digest == plain
    assert (report["read"]["documents"], report["read"]["eval_solution"]) == (2, 4)
    assert report["options"]["kept_out"] == {"ours": "d1"}
    drafted = KeptOut([SuiteSolutions("ours", "d1", {"secret": solution, "drafts/another": "print(1)"})])
    of_drafts = run(texts, "drafted", drafted)[1]["options"]
    assert of_drafts["kept_out_solutions"] != report["options"]["kept_out_solutions"], "a resumed run tells them apart"
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    with pytest.raises(ConfigError, match="no documents but 4 that resemble solutions of eval cases"):
        run(tmp_path / "all.jsonl", "none", kept_out)


def test_a_corpus_given_twice_is_named(corpora: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--also: a corpus is given twice"):
        train([corpora[0], corpora[0]], tmp_path / "out", None, mix=0.0)
