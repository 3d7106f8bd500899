"""Whether transformers, by which the engine in the process and the learner load models, can load one.

This is told by its config.json alone: weights are not read, and no tensor library is needed."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from core.errors import ConfigError
from core.profile.shape import KINDS

_PACKAGES: Final = {
    "aqlm": "aqlm",
    "auto-round": "auto_round",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed_tensors",
    "gptq": "gptqmodel",
    "hqq": "hqq",
    "quanto": "optimum",
    "quark": "quark",
    "torchao": "torchao",
    "vptq": "vptq",
}
"""What transformers imports to load weights that are quantized so. We install none; for others it needs none."""


def require_loadable(directory: Path) -> None:
    """Raise ConfigError naming the file, what is wrong there, and what to do."""
    path = directory / "config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    quantized = config.get("quantization_config")
    how = quantized.get("quant_method") if isinstance(quantized, dict) else None
    package = _PACKAGES.get(how) if isinstance(how, str) else None
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"{path}: quantization_config says that the weights are quantized ({how}), which only {package} reads: take"
            " the model's files in bfloat16 or float32"
        )
    kind = config.get("model_type")
    if kind not in KINDS and not _is_known(kind):
        raise ConfigError(
            f"{path}: model_type is {kind!r}, which is no causal LM that the installed transformers knows: take another"
            " model, or mend the name"
        )


def _is_known(kind: object) -> bool:
    """Return whether transformers knows such models; where it is not installed, nothing here loads any."""
    if find_spec("transformers") is None:
        return True
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return isinstance(kind, str) and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
