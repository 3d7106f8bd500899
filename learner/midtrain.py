"""Continued pretraining of a causal language model on a corpus directory.

Reproducible: a fixed number of steps, an order of examples that follows from the seed, one thread; a run that was
interrupted and resumed ends in the same bits.
"""

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from core.errors import CheckpointError, ConfigError
from core.weights_digest import digest_of_shards
from learner.corpus import Example, encode, read_corpus
from learner.packing import PackedRows, pack, to_tensors

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_CHECKPOINT = "midtrain.pt"


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


def midtrain(corpus: Path, output: Path, init: Path, options: MidtrainOptions, *, resume: bool = False) -> str:
    """Train `init` (a Hugging Face directory; without weights it starts from the seed) into `output`.

    Returns the weights' digest. Raises ConfigError naming the file, or the option, at fault.
    """
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model, tokenizer = _load(init)
    output.mkdir(parents=True, exist_ok=True)
    with _progress() as progress:
        examples = _encode_all(corpus, tokenizer, options.row_tokens, progress)
        _train(model, examples, tokenizer.pad_token_id or 0, output / _CHECKPOINT, options, resume, progress)
    model.to(torch.bfloat16).save_pretrained(output)
    for name in _TOKENIZER_FILES:
        if (init / name).exists() and init.resolve() != output.resolve():
            shutil.copyfile(init / name, output / name)
    (output / _CHECKPOINT).unlink()
    return digest_of_shards(sorted(output.glob("*.safetensors")))


def _load(init: Path) -> tuple[Any, Any]:
    if not (init / "config.json").exists():
        raise ConfigError(f"{init}: no config.json")
    tokenizer = AutoTokenizer.from_pretrained(init)
    if list(init.glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32), tokenizer
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(init), dtype=torch.float32), tokenizer


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )


def _encode_all(corpus: Path, tokenizer: Any, row_tokens: int, progress: Progress) -> list[Example]:
    documents = list(read_corpus(corpus))
    task = progress.add_task("tokenise", total=len(documents), note="documents")
    examples = []
    for where, document in documents:
        example = encode(tokenizer, document, where)
        if len(example.token_ids) > row_tokens:
            raise ConfigError(f"{where}: {len(example.token_ids)} tokens, a row holds {row_tokens}")
        examples.append(example)
        progress.advance(task)
    return examples


def _train(
    model: Any,
    examples: list[Example],
    pad_id: int,
    checkpoint: Path,
    options: MidtrainOptions,
    resume: bool,
    progress: Progress,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    done = _restore(checkpoint, model, optimizer, options) if resume else 0
    task = progress.add_task("train", total=options.steps, completed=done, note="")
    for step, batch in enumerate(_batches(examples, pad_id, options)):
        if step < done:
            continue
        if step == options.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * schedule(step, options)
        loss = weighted_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress.update(task, advance=1, note=f"loss {loss.item():.3f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            _save(checkpoint, model, optimizer, step + 1, options)


def schedule(step: int, options: MidtrainOptions) -> float:
    """Share of the learning rate: a linear warm-up, flat, and a linear decay over the second half."""
    half = options.steps / 2
    decay = 1.0 if step < half else 1.0 - 0.95 * (step - half) / half
    return min(1.0, (step + 1) / options.warmup_steps) * decay


def weighted_loss(model: Any, batch: PackedRows) -> Tensor:
    """Cross-entropy per token, averaged by weight."""
    logits_RTV = model(input_ids=batch.ids_RT, position_ids=batch.positions_RT, attention_mask=batch.mask_R1TT).logits
    losses = torch.nn.functional.cross_entropy(
        logits_RTV[:, :-1].flatten(0, 1), batch.ids_RT[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights_RT[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def _batches(examples: list[Example], pad_id: int, options: MidtrainOptions) -> Iterator[PackedRows]:
    """Endless; each epoch in another order."""
    lengths = [len(example.token_ids) for example in examples]
    generator = torch.Generator().manual_seed(options.seed)
    while True:
        order = torch.randperm(len(examples), generator=generator).tolist()
        rows = pack(lengths, order, options.row_tokens)
        for start in range(0, len(rows), options.rows):
            chosen = [[examples[index] for index in row] for row in rows[start : start + options.rows]]
            yield to_tensors(chosen, options.row_tokens, pad_id)


def _save(path: Path, model: Any, optimizer: torch.optim.Optimizer, step: int, options: MidtrainOptions) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "options": asdict(options)}
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _restore(path: Path, model: Any, optimizer: torch.optim.Optimizer, options: MidtrainOptions) -> int:
    """The number of steps done. Raises CheckpointError for a corrupt file, ConfigError for another run's."""
    if not path.exists():
        return 0
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if state["options"] != asdict(options):
        raise ConfigError(f"{path}: made with other options: {json.dumps(state['options'])}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
