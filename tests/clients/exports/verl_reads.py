"""verl's own classes read exported files as they are; what they make of them is printed as JSON.

usage: verl_reads.py DIRECTORY MODEL, with rewards.parquet, rewards.jsonl and sft.parquet in the directory."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoTokenizer
from verl import DataProto
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.reward_manager.naive import NaiveRewardManager


def rl_batch(file: Path, tokenizer: Any, cache: Path) -> DataProto:
    """Return all rows as the trainer's loader hands them on."""
    settings = OmegaConf.create(
        {"cache_dir": str(cache), "max_prompt_length": 512, "filter_overlong_prompts_workers": 1}
    )
    data = RLHFDataset([str(file)], tokenizer, settings)
    (batch,) = DataLoader(data, batch_size=len(data), collate_fn=collate_fn)
    return DataProto.from_single_dict(batch)


def scores(batch: DataProto, tokenizer: Any) -> list[float]:
    """Return how verl scores the logged answers when an answer is worth 1 that is the ground truth."""
    responses = [torch.tensor(ids) for ids in batch.non_tensor_batch["token_ids"]]
    mask = pad_sequence([torch.ones_like(ids) for ids in responses], batch_first=True)
    ones = torch.ones((len(responses), 1), dtype=torch.long)
    judged = DataProto.from_single_dict(
        {
            "prompts": ones,
            "responses": pad_sequence(responses, batch_first=True),
            "attention_mask": torch.cat([ones, mask], 1),
            **{name: batch.non_tensor_batch[name] for name in ("data_source", "reward_model", "extra_info")},
        }
    )
    manager = NaiveRewardManager(tokenizer, 0, lambda **said: float(said["solution_str"] == said["ground_truth"]))
    return [float(row.sum()) for row in manager(judged)]


def learned(file: Path, tokenizer: Any) -> list[str]:
    """Return what verl's supervised training would learn of each row."""
    settings = OmegaConf.create({"max_length": 512, "pad_mode": "no_padding"})
    rows = MultiTurnSFTDataset([str(file)], tokenizer, settings)
    return [tokenizer.decode(row["input_ids"][row["loss_mask"].bool()]) for row in rows]


def main(directory: Path, model: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    batches = {
        each: rl_batch(directory / f"rewards.{each}", tokenizer, directory / each) for each in ("parquet", "jsonl")
    }
    batch = batches["parquet"].non_tensor_batch
    return {
        "rows": {name: len(each) for name, each in batches.items()},
        "raw_prompt": [list(messages) for messages in batch["raw_prompt"]],
        "ability": list(batch["ability"]),
        "index": [int(number) for number in batch["index"]],
        "token_rewards": [list(map(float, values)) for values in batch["token_rewards"]],
        "scores": scores(batches["parquet"], tokenizer),
        "learned": learned(directory / "sft.parquet", tokenizer),
    }


if __name__ == "__main__":
    np.seterr(all="raise")
    with redirect_stdout(sys.stderr):  # verl prints as it reads
        told = main(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.write(json.dumps(told) + "\n")
