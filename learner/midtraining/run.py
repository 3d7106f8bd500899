"""Continued pretraining of a causal language model on a corpus, with replayed sessions mixed in against forgetting.

It is reproducible: a fixed number of steps, an order of examples that follows from the seed, one thread; a run that was
interrupted and resumed ends in the same bits."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from core.errors import ConfigError, OnwardError
from core.model.files import LOCAL, check_model_files, weight_files
from core.model.weights_digest import digest_of_shards
from learner.midtraining.checkpoint import CHECKPOINT, MidtrainingRun, restore, save
from learner.midtraining.corpus_reader import CorpusReader, Long
from learner.midtraining.losses import LossesBySource
from learner.midtraining.mixture import SessionMixture
from learner.sequences.packable import require_rows
from learner.sequences.packing import PackedRows
from learner.sequences.resemblance import NOTHING_KEPT_OUT, KeptOut

REPORT = "report.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True)
class MidtrainOptions:
    steps: int
    seed: int
    row_tokens: int = 256
    rows: int = 8
    """Rows in a step."""
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    save_every: int = 200
    buffer_tokens: int = 1 << 24
    """So many are in memory at once, and shuffled among each other; 12 bytes each."""
    long: Long = "refuse"
    """The treatment of a document that is longer than a row."""
    mix: float = 0.0
    """Share of the tokens that are of replayed sessions."""

    def __post_init__(self) -> None:
        """Check the options. Raises ConfigError naming the one at fault."""
        if not 0 <= self.mix < 1:
            raise ConfigError(f"--mix {self.mix:g}: want a share from 0 to below 1")
        for name, least in {"steps": 1, "row_tokens": 2, "rows": 1, "save_every": 1, "buffer_tokens": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: want at least {least}")


@dataclass(frozen=True)
class Sessions:
    """Replayed sessions: a file of `token_ids` and `spans`, and the figures of where it came from, for the report."""

    file: Path
    figures: dict[str, Any]


def midtrain(
    corpus: Path,
    output: Path,
    init: Path,
    options: MidtrainOptions,
    kept_out: KeptOut = NOTHING_KEPT_OUT,
    *,
    also: Sequence[Path] = (),
    sessions: Sessions | None = None,
    resume: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> str:
    """Train a model on the corpus, then on those of `also`; write it to `output` with a report on each source.

    `init` is a Hugging Face directory; without weights the model starts from the seed. Documents that resemble a
    solution of `kept_out` are left out. `provenance`: what the report says of who made it. Returns the weights' digest.
    Raises ConfigError naming the file or option at fault, CheckpointError."""
    assert (options.mix > 0) == (sessions is not None)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model, tokenizer = _load(init, options.row_tokens)
    require_rows(model)
    corpora = [corpus, *also]
    reader = CorpusReader(corpora, tokenizer, options.row_tokens, options.long, kept_out)
    replayed = None
    if sessions is not None:
        replayed = CorpusReader([sessions.file], tokenizer, options.row_tokens, "refuse", source=len(corpora))
    names = [*map(str, corpora), *(["sessions"] if sessions is not None else [])]
    if len(set(names)) < len(names):
        raise ConfigError(f"--also: a corpus is given twice: {', '.join(names)}")
    run = MidtrainingRun(
        model=model,
        optimizer=_optimizer(model, options),
        mixture=_mixture(reader, replayed, options),
        losses=LossesBySource(names, options.steps),
        options=asdict(options) | _named(kept_out),
        files=[each.fingerprint() for each in (reader, replayed) if each is not None],
    )
    output.mkdir(parents=True, exist_ok=True)
    with _progress() as progress:
        _train(run, tokenizer.pad_token_id or 0, output / CHECKPOINT, options, resume, progress)
    return _finish(run, init, output, sessions, provenance or {})


def _named(kept_out: KeptOut) -> dict[str, Any]:
    """Return what a resumed run recognises its suites by: their digests, and one of all solutions, with the drafts'."""
    if not kept_out.suites:
        return {}
    whole = blake3()
    for solution in sorted(kept_out.solutions):
        whole.update(blake3(solution.encode()).digest())
    suites = {suite.suite: suite.digest for suite in kept_out.suites}
    return {"kept_out": suites, "kept_out_solutions": whole.hexdigest()}


def _load(init: Path, row_tokens: int) -> tuple[Any, Any]:
    if not (init / "config.json").exists():
        raise ConfigError(f"{init}: no config.json")
    check_model_files(init)
    config = AutoConfig.from_pretrained(init, **LOCAL)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is not None and row_tokens > context:
        raise ConfigError(f"--row-tokens {row_tokens}: the model's context is {context}")
    tokenizer = AutoTokenizer.from_pretrained(init, **LOCAL)
    if weight_files(init):
        given = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32, use_safetensors=True, **LOCAL)
        return given, tokenizer
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False), tokenizer


def _optimizer(model: Any, options: MidtrainOptions) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)


def _mixture(reader: CorpusReader, replayed: CorpusReader | None, options: MidtrainOptions) -> SessionMixture:
    return SessionMixture(
        reader, replayed, options.mix, options.buffer_tokens, options.row_tokens, options.rows, options.seed
    )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),  # on stdout is the digest
    )


def _train(
    run: MidtrainingRun, pad_id: int, checkpoint: Path, options: MidtrainOptions, resume: bool, progress: Progress
) -> None:
    done = restore(checkpoint, run) if resume else 0
    if done == options.steps:
        return
    batches = run.mixture.batches(pad_id, progress)
    batch = next(batches)
    task = progress.add_task("train", total=options.steps, completed=done, note="")
    started_s, tokens = time.monotonic(), 0
    for step in range(done, options.steps):
        loss = _step(run, batch, step, options)
        tokens += int((batch.sources_RT >= 0).sum())
        rate = tokens / (time.monotonic() - started_s)
        progress.update(task, advance=1, note=f"loss {loss:.3f}, {rate:,.0f} tokens/s")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            save(checkpoint, run, step + 1)
        if step + 1 < options.steps:
            batch = next(batches)


def _step(run: MidtrainingRun, batch: PackedRows, step: int, options: MidtrainOptions) -> float:
    for group in run.optimizer.param_groups:
        group["lr"] = options.learning_rate * schedule(step, options)
    losses_RT = token_losses(run.model, batch)
    loss = weighted_mean(losses_RT, batch)
    if not loss.isfinite():
        raise OnwardError(f"step {step + 1}: the loss is {loss.item()}; what --save-every kept is from before it")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.losses.add(step, losses_RT, batch)
    return loss.item()


def schedule(step: int, options: MidtrainOptions) -> float:
    """Return the share of the learning rate: a linear warm-up, flat, and a linear decay over the second half."""
    half = options.steps / 2
    decay = 1.0 if step < half else 1.0 - 0.95 * (step - half) / half
    return min(1.0, (step + 1) / options.warmup_steps) * decay


def token_losses(model: Any, batch: PackedRows) -> Tensor:
    """Return [R, T - 1]: cross-entropy of each token from the second place on, in nats."""
    logits_RTV = model(input_ids=batch.ids_RT, position_ids=batch.positions_RT, attention_mask=batch.mask_R1TT).logits
    losses = torch.nn.functional.cross_entropy(
        logits_RTV[:, :-1].flatten(0, 1), batch.ids_RT[:, 1:].flatten(), reduction="none"
    )
    return losses.view(len(batch.ids_RT), -1)


def weighted_mean(losses_RT: Tensor, batch: PackedRows) -> Tensor:
    weights_RT = batch.weights_RT[:, 1:]
    return (losses_RT.flatten() * weights_RT.flatten()).sum() / weights_RT.flatten().sum()


def _finish(
    run: MidtrainingRun, init: Path, output: Path, sessions: Sessions | None, provenance: Mapping[str, Any]
) -> str:
    """Write weights, tokenizer and report, then delete the checkpoint."""
    run.model.to(torch.bfloat16).save_pretrained(output)
    for name in _TOKENIZER_FILES:
        if (init / name).exists() and init.resolve() != output.resolve():
            shutil.copyfile(init / name, output / name)
    digest = digest_of_shards(weight_files(output))
    report = {"weights_digest": digest, "options": run.options, "read": run.mixture.read}
    if sessions is not None:
        report |= {"sessions": sessions.figures}
    if provenance:
        report |= {"provenance": dict(provenance)}
    (output / REPORT).write_text(json.dumps(report | run.losses.report(), indent=1) + "\n")
    (output / CHECKPOINT).unlink()
    return digest
