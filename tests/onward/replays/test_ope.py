"""`onward ope`: checkpoints of any origin, and versions of the service, are judged by the same logged turns."""

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from logged_world import MODEL, anchor_probe, make_reward, make_turn
from safetensors.torch import load_file, save_file

from core.errors import ConfigError
from core.events import Completion, Topic
from core.ids import UserHash
from core.model.weights_digest import digest_of_shards
from learner.model.policy_model import PolicyModel
from learner.off_policy.log_ratios import logged_turns
from learner.sequences.scored import ScoredTurn
from onward.cli import app
from onward.output import console
from onward.replays.estimates.held_out import is_held_out
from onward.replays.estimates.ope import show
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor

USERS = 72  # three for each of the answers there are
SHARPER = 1.1  # the checkpoint's logits, in units of the service's


@dataclass(frozen=True)
class World:
    directory: Path
    sharper: Path
    turns: list[Completion]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Log turns of users who like what the sharper checkpoint prefers, and two that cannot judge."""
    here = tmp_path_factory.mktemp("ope")
    sharper = here / "sharper"
    shutil.copytree(MODEL, sharper)
    tensors = load_file(MODEL / "model.safetensors")
    changed = tensors | {"model.norm.weight": tensors["model.norm.weight"] * SHARPER}
    save_file(changed, sharper / "model.safetensors", {"format": "pt"})
    turns = [make_turn(n, user_id=UserHash(f"user {n}"), workload=("write", "ask")[n % 2]) for n in range(USERS)]
    batch = [ScoredTurn(turn, make_reward(turn, float(n % 2))) for n, turn in enumerate(turns)]
    ratio_N = logged_turns(PolicyModel(sharper, "cpu"), batch, 4096, "cpu").log_ratio_N
    values = np.where(ratio_N > np.median(ratio_N), 1.0, -0.5)
    rewards = [make_reward(turn, float(value)) for turn, value in zip(turns, values, strict=True)]
    void, silent = make_turn(90), make_turn(91)
    rewards.append(msgspec.structs.replace(make_reward(void, 0.0), void=True))
    with closing(open_foundation(here / "service")) as made:
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", anchor_probe)
        made.log.append_blocking(Topic.TURNS, [*turns, void, silent])
        made.log.append_blocking(Topic.REWARDS, rewards)
    return World(here / "service", sharper, turns)


def ope(world: World, *options: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["ope", str(world.directory), *map(str, options)], result_action="return_value")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_checkpoint_is_judged_beside_the_live_version_and_in_a_pair_with_it(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ope.json"
    assert ope(world, "--policy", world.sharper, "--json", "--out", out) == 0
    report = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == report
    assert (report["turns"], report["judged_by"], report["missing"]) == (USERS + 2, USERS, 0)
    assert report["left_out"] == {"unrewarded": 1, "void": 1}
    live, sharper = report["candidates"]
    assert (live["name"], sharper["name"]) == ("version 1", str(world.sharper))
    assert sharper["digest"] == digest_of_shards([world.sharper / "model.safetensors"]) != live["digest"]
    assert sharper["gains"]["stated"]["low"] > 0
    assert live["gains"]["snips"]["value"] == pytest.approx(0.0, abs=1e-3), "it is what answered"
    (pair,) = report["paired"]
    assert (pair["one"], pair["other"]) == (sharper["name"], "version 1")
    difference = pair["differences"]["snips"]
    assert difference["value"] == pytest.approx(sharper["gains"]["snips"]["value"] - live["gains"]["snips"]["value"])
    assert 0 < difference["low"] < difference["value"] < difference["high"]
    told = report["provenance"]
    assert (told["versions"], told["model_digest"], told["seeds"]) == (["1", "1"], live["digest"], {})
    assert (told["model"], len(told["commit"])) == ("onward-tiny", 40)
    assert told["command"].startswith("onward")
    show(report, console())
    words = capsys.readouterr().out
    assert f"{world.sharper} less version 1" in words
    assert "--holdout" in words, "it says whose turns flatter a candidate"


def test_only_users_that_were_held_out_judge_if_so_wanted(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert ope(world, "--holdout", "0.1", "--json") == 1, "too few users can tell nothing"
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["judged_by"] == sum(is_held_out(turn, 0.1) for turn in world.turns) < USERS
    (live,) = report["candidates"]
    assert "users, not 30" in live["refused"]
    assert report["paired"] == []
    assert ope(world, "--workload", "nobody's") == 1
    assert "judged by 0 of 0 turns" in capsys.readouterr().out


def without_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def other_tokens(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (directory / "tokenizer.json").write_text(json.dumps(content))


def pickled(directory: Path) -> None:
    (directory / "optimizer.pt").write_bytes(b"")


def without_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def without_a_tensor(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.0.self_attn.k_norm.weight"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def with_an_adapter(directory: Path) -> None:
    (directory / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (without_tokenizer, r"tokenizer\.json: .*save the tokenizer beside the weights"),
        (other_tokens, r"in its tokenizer\.json and \d+ in that of the service's model"),
        (pickled, r"optimizer\.pt: a pickle runs"),
        (without_weights, r"spoilt: no weights"),
        (without_a_tensor, r"spoilt: its weights lack 1 of the tensors .*k_norm"),
        (with_an_adapter, r"adapter_config\.json: an adapter beside a whole model"),
        (shutil.rmtree, r"spoilt: no such directory"),
    ],
)
def test_a_directory_that_is_no_checkpoint_of_such_tokens_is_refused(
    world: World, tmp_path: Path, spoil: Any, why: str
) -> None:
    shutil.copytree(MODEL, tmp_path / "spoilt")
    spoil(tmp_path / "spoilt")
    with pytest.raises(ConfigError, match=why):
        app(["ope", str(world.directory), "--policy", str(tmp_path / "spoilt")], result_action="return_value")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--version", "9"], "--version 9: there is none"),
        (["--version", "0"], "--version 0: want the number"),
        (["--version", str(1 << 63)], f"--version {1 << 63}: want the number"),
        (["--version", "1", "--version", "1"], "version 1: named twice"),
        (["--holdout", "0"], "--holdout 0: want a share above 0"),
        (["--out", "{there}"], "it is there already"),
        (["--out", "{there}/report.json"], "File exists|Not a directory"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    world: World, tmp_path: Path, options: Sequence[str], why: str
) -> None:
    (tmp_path / "there").touch()
    given = [each.format(there=tmp_path / "there") for each in options]
    with pytest.raises(ConfigError, match=why):
        app(["ope", str(world.directory), *given], result_action="return_value")
