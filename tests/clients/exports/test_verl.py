"""verl reads what `onward export` writes, in an environment of its own (`make clients`)."""

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from told_past import SUM, a_week, keep
from tried_clients import BUILD, HERE

from onward.directory.layout import SHIPPED_MODEL
from onward.replays.exports.samples import Wanted, export_samples

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
PYTHON = BUILD / "verl-python" / "bin" / "python"


def test_its_data_sets_and_its_reward_manager_take_the_files_unchanged(tmp_path: Path) -> None:
    week = keep(tmp_path / "week", a_week())
    for form, suffix in (("rewards", "parquet"), ("rewards", "jsonl"), ("sft", "parquet")):
        export_samples(week, tmp_path / f"{form}.{suffix}", Wanted(form), {})
    command = [str(PYTHON), "-B", str(HERE / "exports" / "verl_reads.py"), str(tmp_path), str(SHIPPED_MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    rows = pq.read_table(tmp_path / "rewards.parquet").to_pylist()
    assert told["rows"] == {"parquet": len(rows), "jsonl": len(rows)} == {"parquet": 4, "jsonl": 4}
    assert told["raw_prompt"] == [row["prompt"] for row in rows]
    assert told["ability"] == ["write", "write", "write", "chat"]
    assert told["index"] == [0, 1, 2, 3]
    assert told["token_rewards"] == [row["token_rewards"] for row in rows]
    assert told["scores"] == [1.0, 0.0, 0.0, 1.0], "a good answer is its own ground truth; an edited one is not"
    kept = [SUM, "def total(ys):\n    return sum(xs)", "len(xs)"]
    assert [text.removesuffix("<|im_end|>\n") for text in told["learned"]] == kept
