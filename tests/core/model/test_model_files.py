"""Loading a model's directory runs nothing in it: neither a pickle nor the model's own code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.model.files import PICKLES, check_model_files
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
