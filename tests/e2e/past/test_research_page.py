"""The commands of docs/research.md work as they stand there, on a past of real samples; outputs look as shown."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tasteful_week import TURNS, make_week

from learner.versions.probe import probe_of_model
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "research.md").read_text()
BLOCKS = re.findall(r"^```(sh|json|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("research")
    make_week(root / "week")
    with closing(open_foundation(root / "week")) as made:
        recorded = partial(probe_of_model, device="cpu")
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", recorded)
    (root / "models").symlink_to(ROOT / "models")
    return root


def test_each_command_works_in_turn_and_prints_what_the_page_shows(place: Path) -> None:
    assert [kind for kind, _ in BLOCKS].count("sh") == 5
    printed = ""
    for kind, text in BLOCKS:
        if kind == "json":
            shown, told = json.loads(text), json.loads(printed)
            assert shown.keys() == told.keys()
            for part in ("left_out", "held_out"):
                assert shown.get(part, {}).keys() == told.get(part, {}).keys()
            assert told.get("turns", TURNS) == TURNS
            continue
        printed = run(place, ["bash", "-euo", "pipefail"] if kind == "sh" else [sys.executable], text)
    rows = json.loads((place / "pairs.parquet.manifest.json").read_text())["rows"]
    assert rows > 10
    reports = {name: json.loads((place / name / "report.json").read_text()) for name in ("everything", "clear")}
    assert (reports["everything"]["not_chosen"], reports["clear"]["not_chosen"] > 0) == (0, True)
    assert all(report["version"] > 1 for report in reports.values()), "both learned"
    assert (place / "clear" / "report.png").stat().st_size > 1000
    assert (place / "dpo" / "model.safetensors").exists()
    with closing(open_foundation(place / "week")) as made, made.store.look() as view:
        newest, _ = view.policies.newest(1)[0]
    assert newest.is_proposed


def run(place: Path, program: list[str], text: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    mine = {"PATH": path, "HF_HOME": str(place / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [*program, "-c", text]
    done = subprocess.run(command, cwd=place, env=os.environ | mine, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
