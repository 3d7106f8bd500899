"""The candidates of `onward ope`: checkpoints of any origin, and versions of the service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoConfig

from core.errors import ConfigError, WeightsError
from core.events import PolicyVersion
from core.model.files import LOCAL, check_model_files, check_weights, weight_files
from core.model.weights_digest import digest_of_shards
from core.ports import WeightsRef
from learner.model.policy_model import PolicyModel
from learner.versions.loading import load_version
from onward.replays.history import version_named
from onward.wiring.foundation import Foundation


@dataclass(frozen=True)
class Candidate:
    """One whose answers are judged. `context`: the most tokens that it reads; None where its config does not say."""

    name: str
    digest: str
    context: int | None
    load: Callable[[str], PolicyModel]
    """Given the device."""


def candidates_of(source: Foundation, policies: Sequence[Path], versions: Sequence[int]) -> list[Candidate]:
    """Return them, checked: the versions first, of which the live one is taken where none is named.

    Raises ConfigError naming the directory, or the version, at fault."""
    kept = [_kept(source, version) for version in versions] or _live(source)
    if not kept and not policies:
        raise ConfigError(f"{source.layout.root}: no version serves here: name a checkpoint (--policy) or a --version")
    found = [_of_service(source, policy) for policy in kept]
    found += [_of_directory(source, each) for each in policies]
    named = [f"version {policy.version}" for policy in kept] + [str(each.resolve()) for each in policies]
    for name in {each for each in named if named.count(each) > 1}:
        raise ConfigError(f"{name}: named twice")
    return found


def _live(source: Foundation) -> list[PolicyVersion]:
    with source.store.look() as view:
        live = view.releases.live(source.settings.serving.cluster)
        policy = None if live is None else view.policies.get(live)
    return [] if policy is None else [policy]


def _kept(source: Foundation, version: int) -> PolicyVersion:
    named = version_named(version)
    with source.store.look() as view:
        policy = view.policies.get(named)
    if policy is None:
        raise ConfigError(f"--version {version}: there is none in {source.layout.root}")
    return policy


def _of_service(source: Foundation, policy: PolicyVersion) -> Candidate:
    ref = WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights, parent=policy.parent)
    try:
        opened = source.weights.open(ref)
    except (OSError, WeightsError) as error:
        raise ConfigError(f"--version {policy.version}: its weights are not kept any more ({error})") from error

    def load(device: str) -> PolicyModel:
        candidate = PolicyModel(source.model, device)
        load_version(candidate, opened)
        return candidate

    return Candidate(f"version {policy.version}", policy.digest, _context(source.model), load)


def _of_directory(source: Foundation, directory: Path) -> Candidate:
    if not directory.is_dir():
        raise ConfigError(f"--policy {directory}: no such directory")
    check_model_files(directory)
    check_weights(directory)
    _require_same_tokens(source.model, directory)
    digest = digest_of_shards(weight_files(directory))
    return Candidate(str(directory), digest, _context(directory), lambda device: PolicyModel(directory, device))


def _context(directory: Path) -> int | None:
    """Return the model's context length. Raises ConfigError for a config that transformers does not know."""
    try:
        config = AutoConfig.from_pretrained(directory, **LOCAL)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / 'config.json'}: {error}") from error
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def _require_same_tokens(model: Path, directory: Path) -> None:
    """Require that the turns' token ids mean the same to the checkpoint, however its tokenizer's file is written."""
    ours, theirs = (_tokens(each) for each in (model, directory))
    other = next((token for token, number in sorted(ours.items()) if theirs.get(token) != number), None)
    if other is not None:
        raise ConfigError(
            f"--policy {directory}: token {other!r} is {theirs.get(other, 'unknown')} in its tokenizer.json and "
            f"{ours[other]} in that of the service's model, {model}: turns are judged token by token"
        )


def _tokens(directory: Path) -> dict[str, int]:
    path = directory / "tokenizer.json"
    try:
        return dict(Tokenizer.from_str(path.read_text(encoding="utf-8")).get_vocab())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: save the tokenizer beside the weights") from error
    except ValueError as error:  # no UTF-8
        raise ConfigError(f"{path}: no tokenizer can be read ({error})") from error
