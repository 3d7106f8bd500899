"""Versions in memory: published files become models beside those that serve.

Whole weights become a model at once. An adapter is kept as the few tens of megabytes that it is, and merged with the
base when its version is to compute: W + (alpha / rank) B A, in float32, rounded once to the engine's dtype."""

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from core.errors import EngineUnavailable, WeightsError
from core.ids import PolicyRef
from core.model.adapters import A, B, check_base, check_fits, digest_upon, low_rank_of
from core.ports import Opened, WeightsRef
from serving.engines.local.model import Decoder

Model = TypeVar("Model", bound=nn.Module)
_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@dataclass(frozen=True)
class PublishedLowRank:
    """A [rank, inputs] and B [outputs, rank] of one weight, on the CPU, as they were published."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class HeldAdapter:
    """A verified adapter: the matrices by the name of the weight that they change, and what B A is scaled by."""

    digest: str
    scale: float
    changes: Mapping[str, PublishedLowRank]


class Versions:
    """The versions that an engine holds, and the decoders of those that are ready to compute.

    `decoders` is shared with the scheduler: others add to it, and only the engine's thread takes away. What is held of
    an adapter that nobody uses is the adapter alone: its decoder is made again when it is wanted. Where adapters are
    computed beside packed weights, a decoder is hardly more than its adapter, and stays. Thread-safe."""

    def __init__(self, anchor: Decoder, ref: WeightsRef, base: Opened) -> None:
        """Hold the anchor, which is the base that adapters stand upon."""
        self.decoders: dict[PolicyRef, Decoder] = {ref.version: anchor}
        self._digests: dict[PolicyRef, str] = {ref.version: ref.digest}
        self._adapters: dict[PolicyRef, HeldAdapter] = {}
        self._anchor, self._base = ref.version, base
        self._packed = anchor if anchor.is_packed else None  # adapters are computed beside it
        self._shared: dict[str, Tensor] = {}
        self._making = threading.Lock()
        self._users = Counter[PolicyRef]()
        self._counting = threading.Lock()

    @property
    def digests(self) -> dict[PolicyRef, str]:
        return dict(self._digests)

    def load(self, ref: WeightsRef, opened: Opened, live: Decoder) -> None:
        """Hold a version, to compute as the live one does. Raises WeightsError naming what does not fit."""
        like = self._packed or live
        if opened.adapter is None:
            model, digest = build_version(like.model, opened.shards, ref, as_stored=like.is_packed)
            self.decoders[ref.version], self._digests[ref.version] = like.alike(model), digest
            return
        adapter = read_adapter(like.model, self._base, opened, ref)
        if like.takes(adapter.changes):
            self.decoders[ref.version] = like.adapted(adapter.changes, adapter.scale)
        else:
            self._adapters[ref.version] = adapter
        self._digests[ref.version] = adapter.digest

    def take(self, version: PolicyRef, live: Decoder, make_room: Callable[[], None]) -> Decoder:
        """Return a held version's decoder, made now where there is none, and keep it until it is let go.

        `make_room` calls `rest` where no step runs. Raises WeightsError, EngineUnavailable."""
        with self._counting:
            self._users[version] += 1
            if version in self.decoders:
                return self.decoders[version]
        with self._making, ExitStack() as undo:
            undo.callback(self.let_go, version)
            if version not in self.decoders:
                make_room()
                self.decoders[version] = self._made(version, live)
            undo.pop_all()
            return self.decoders[version]

    def let_go(self, version: PolicyRef) -> None:
        with self._counting:
            self._users[version] -= 1

    def users(self, version: PolicyRef) -> int:
        with self._counting:
            return self._users[version]

    def rest(self, is_needed: Callable[[PolicyRef], object]) -> None:
        """Take away the decoders of adapters that nobody has taken, nor the scheduler needs."""
        with self._counting:
            for version in self._adapters.keys() & self.decoders.keys():
                if not self._users[version] and not is_needed(version):
                    del self.decoders[version]

    def drop(self, version: PolicyRef) -> None:
        self._digests.pop(version)
        self._adapters.pop(version, None)
        self.decoders.pop(version, None)

    def _made(self, version: PolicyRef, live: Decoder) -> Decoder:
        if version not in self._adapters:
            raise EngineUnavailable(f"version {version} is not loaded")
        like, adapter = self._packed or live, self._adapters[version]
        if like.is_packed:  # its model has nothing to share
            return like.alike(merge(like.model, self._base, adapter, {}))
        if not self._shared and self._anchor in self.decoders:
            self._shared = unchanged(self.decoders[self._anchor].model, adapter)
        model = merge(like.model, self._base, adapter, self._shared)
        self._shared = self._shared or unchanged(model, adapter)
        return like.alike(model)


def build_version(
    template: Model, shards: Sequence[Path], ref: WeightsRef, *, as_stored: bool = False
) -> tuple[Model, str]:
    """Build a model like `template` with the shards' weights; return it and the digest of its weights.

    The digest is that of core.model.weights_digest. The modules are copied, the new tensors put in their places, and
    what no weights touch is shared. `as_stored`: the tensors are views of the files, of their dtypes, for who packs
    them at once. Raises WeightsError naming the file and tensor that does not fit, or when the digest is not the
    reference's."""
    names = _names_by_tensor(template)
    stored = _stored(template, shards)
    replaced: dict[int, Tensor] = {}
    held: dict[str, Tensor] = {}
    for tensor, aliases in names:
        raw, found = _of_aliases(shards, stored, aliases)
        # Never a view of a file that may change, but for who copies it in the next moment.
        new = raw if as_stored else raw.to(device=tensor.device, dtype=tensor.dtype, copy=True)
        replaced[id(tensor)] = new
        lossless = torch.promote_types(raw.dtype, new.dtype) == new.dtype
        held |= dict.fromkeys(found, new.to(raw.dtype) if lossless else raw)
    digest = _digest(held)
    _require_digest(ref, digest)
    return _copied(template, replaced), digest


def read_adapter(template: nn.Module, base: Opened, opened: Opened, ref: WeightsRef) -> HeldAdapter:
    """Read an adapter into memory.

    Raises WeightsError when it is upon another base, naming both digests, or naming the file and tensor that does not
    fit, or when the digest is not the reference's."""
    config = opened.adapter
    assert config is not None
    check_base(config, base.digest, f"version {ref.version}")
    single = {names[0]: tensor.shape for tensor, names in _names_by_tensor(template) if len(names) == 1}
    low_ranks = low_rank_of(opened.shards, config)
    check_fits(low_ranks, single)
    tensors = {name: tensor.clone() for _, name, tensor in _read(opened.shards)}
    digest = digest_upon(_digest(tensors), config)
    _require_digest(ref, digest)
    changes = {}
    for name in low_ranks:
        module = name.removesuffix(".weight")
        changes[name] = PublishedLowRank(tensors[module + A], tensors[module + B])
    return HeldAdapter(digest, config.scale, changes)


@torch.no_grad()
def merge(template: Model, base: Opened, adapter: HeldAdapter, shared: Mapping[str, Tensor]) -> Model:
    """Build a model like `template` with the base's weights and an adapter merged into them.

    The base is read from its files. What the adapter does not change is taken from `shared`, where it is there."""
    stored = _stored(template, base.shards)
    replaced: dict[int, Tensor] = {}
    for tensor, aliases in _names_by_tensor(template):
        change = adapter.changes.get(aliases[0])
        if change is None and aliases[0] in shared:
            replaced[id(tensor)] = shared[aliases[0]]
            continue
        raw, _ = _of_aliases(base.shards, stored, aliases)
        if change is None:
            replaced[id(tensor)] = raw.to(device=tensor.device, dtype=tensor.dtype, copy=True)
            continue
        sum_OI = raw.to(device=tensor.device, dtype=torch.float32, copy=True)
        a_RI, b_OR = (each.to(device=tensor.device, dtype=torch.float32) for each in (change.a, change.b))
        replaced[id(tensor)] = sum_OI.addmm_(b_OR, a_RI, alpha=adapter.scale).to(tensor.dtype)
    return _copied(template, replaced)


def unchanged(model: nn.Module, adapter: HeldAdapter) -> dict[str, Tensor]:
    """Return the tensors of a merged model that are the base's, by their first names: others can share them."""
    return {names[0]: tensor for tensor, names in _names_by_tensor(model) if names[0] not in adapter.changes}


def _copied(template: Model, replaced: Mapping[int, Tensor]) -> Model:
    """Return a copy of the modules with other tensors in the places of the template's, which are named by `id`."""
    memo: dict[int, object] = {id(template.config): template.config}
    memo |= {id(buffer): buffer for buffer in template.buffers()}
    for tensor, _ in _names_by_tensor(template):
        new = replaced[id(tensor)]
        if isinstance(tensor, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, requires_grad=False)
        memo[id(tensor)] = new
    return copy.deepcopy(template, memo)


def _stored(template: nn.Module, shards: Sequence[Path]) -> dict[str, tuple[Path, Tensor]]:
    """Return the shards' tensors by name, still in their files. Raises WeightsError for one that does not fit."""
    known = {name: tensor for tensor, aliases in _names_by_tensor(template) for name in aliases}
    stored: dict[str, tuple[Path, Tensor]] = {}
    for path, name, tensor in _read(shards):
        if name not in known:
            raise WeightsError(f"{path}: tensor {name} is not one of the model's")
        if tensor.shape != known[name].shape:
            raise WeightsError(f"{path}: {name} is of shape {list(tensor.shape)}, not {list(known[name].shape)}")
        if tensor.dtype not in _DTYPE_NAMES:
            raise WeightsError(f"{path}: {name} is of dtype {tensor.dtype}, which the engine cannot load")
        stored[name] = (path, tensor)
    return stored


def _of_aliases(
    shards: Sequence[Path], stored: Mapping[str, tuple[Path, Tensor]], aliases: Sequence[str]
) -> tuple[Tensor, list[str]]:
    """Return the one tensor that is stored under these names, and those that it is stored under."""
    found = [alias for alias in aliases if alias in stored]
    if not found:
        raise WeightsError(f"{shards[0].parent}: tensor {aliases[0]} is missing")
    path, raw = stored[found[0]]
    if any(not torch.equal(raw, stored[alias][1]) for alias in found[1:]):
        raise WeightsError(f"{path}: {' and '.join(found)} are one tensor in the model, and differ")
    return raw, found


def _require_digest(ref: WeightsRef, digest: str) -> None:
    if digest != ref.digest:
        raise WeightsError(f"{ref.path}: what was loaded has digest {digest}, version {ref.version} {ref.digest}")


def _names_by_tensor(model: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Return each tensor of the state once, with all its names: tied ones have several."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return list(found.values())


def _read(shards: Sequence[Path]) -> Iterator[tuple[Path, str, Tensor]]:
    for path in shards:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no dict
                    yield path, name, file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{path}: cannot be read ({error})") from error


def _digest(tensors: dict[str, Tensor]) -> str:
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = ",".join(map(str, tensor.shape))
        hasher.update(f"{name}\0{_DTYPE_NAMES[tensor.dtype]}\0{shape}\0".encode())
        hasher.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return str(hasher.hexdigest())
