"""Loading a model's directory runs nothing in it: neither a pickle nor the model's own code."""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from core.errors import ConfigError
from core.model.files import PICKLES, check_model_files, check_weights, weight_files
from core.settings import load_settings

ROOT = Path(__file__).parents[3]
PRODUCT = ("core", "api", "ingest", "scoring", "learner", "serving", "onward", "kernels", "migrations")
READERS = {f"{kind}.{how}" for kind in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
           for how in ("from_pretrained", "from_config")}  # fmt: skip


@pytest.mark.parametrize("suffix", sorted(PICKLES))
def test_a_pickle_is_refused_by_name_with_what_to_do(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "model.safetensors").touch()
    check_model_files(tmp_path)
    (tmp_path / f"pytorch_model{suffix}").touch()
    with pytest.raises(ConfigError, match=rf"pytorch_model\{suffix}: a pickle runs .* save the weights anew"):
        check_model_files(tmp_path)


def shards(directory: Path, *, indexed: bool = True) -> tuple[Path, Path]:
    """Write the weights of a model in two files, with the original author's file beside them."""
    paths = directory / "model-00001-of-00002.safetensors", directory / "model-00002-of-00002.safetensors"
    for path, name in zip(paths, ("a", "b"), strict=True):
        save_file({name: np.zeros(8, np.float32)}, path)
    save_file({"tok_embeddings.weight": np.zeros(8, np.float32)}, directory / "consolidated.safetensors")
    if indexed:
        index = {"metadata": {}, "weight_map": {"a": paths[0].name, "b": paths[1].name}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return paths


def test_weights_are_the_files_that_transformers_reads(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    assert weight_files(tmp_path) == list(paths)
    check_weights(tmp_path)
    whole = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(8, np.float32)}, whole)
    assert weight_files(tmp_path) == [whole]
    for file in (whole, tmp_path / "model.safetensors.index.json", tmp_path / "consolidated.safetensors"):
        file.unlink()
    assert weight_files(tmp_path) == list(paths), "as versions of ours are written"


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 99\n"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pointer": (lambda path: path.write_text(POINTER), "a Git-LFS pointer .* run `git lfs pull`"),
    "a missing shard": (lambda path: path.unlink(), "is missing, .* download it"),
    "a dangling link": (
        lambda path: (path.unlink(), path.symlink_to("../blobs/0123")),
        "a link to ../blobs/0123, .* `cp -L`",
    ),
    "a cut file": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "truncated, 9 bytes .* download"),
    "an empty file": (lambda path: path.write_bytes(b""), "no safetensors header: download"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "no file: download"),
    "another's tensors": (lambda path: save_file({"c": np.zeros(8, np.float32)}, path), "lacks tensor b, .* again"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_weights_that_are_not_whole_are_named_with_what_to_do(tmp_path: Path, what: str) -> None:
    (_, second), (spoil, said) = shards(tmp_path), FAULTS[what]
    spoil(second)
    with pytest.raises(ConfigError, match=f"{second.name}: {said}"):
        check_weights(tmp_path)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["model-00001-of-00002.safetensors"], r"model\.safetensors\.index\.json: is missing, .* download it"),
        (["consolidated.safetensors"], r"index\.json: is missing, .*consolidated\.safetensors"),
        (["adapter_model.safetensors", "adapter_config.json"], "an adapter and no model: merge it"),
    ],
)
def test_weights_that_transformers_would_not_find_are_no_weights(tmp_path: Path, names: list[str], said: str) -> None:
    for name in names:
        save_file({"a": np.zeros(8, np.float32)}, tmp_path / name)
    with pytest.raises(ConfigError, match=said):
        check_weights(tmp_path)


def test_a_text_that_is_not_there_is_named_too_and_so_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no weights: download"):
        check_weights(tmp_path)
    (tmp_path / "tokenizer.json").write_text(POINTER)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: a Git-LFS pointer"):
        check_model_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"index\.json: no index of weights"):
        check_weights(tmp_path)


def test_a_server_is_not_told_to_trust_a_models_code() -> None:
    for given in ('["--trust-remote-code"]', '["--tp", "2", "--trust-remote-code=true"]'):
        with pytest.raises(ConfigError, match=r"serving\.sglang\.arguments: .*never run"):
            load_settings(None, {"ONWARD_SERVING__SGLANG__ARGUMENTS": given})


def calls() -> Iterator[tuple[str, ast.Call]]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_whoever_reads_a_model_or_a_checkpoint_says_that_nothing_is_run() -> None:
    read = 0
    for place, call in calls():
        name = ast.unparse(call.func)
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name == "torch.load":
            assert given.get("weights_only") == "True", place
        elif name in READERS:
            assert given.get(None) == "LOCAL" or given.get("trust_remote_code") == "False", place
            assert name != "AutoModelForCausalLM.from_pretrained" or given.get("use_safetensors") == "True", place
            read += 1
        assert name not in ("pickle.load", "pickle.loads", "pickle.Unpickler"), place
    assert read >= 5, "the readers are among what was looked at"
