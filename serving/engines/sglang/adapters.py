"""The adapters of one SGLang server: each is loaded under a name of its own, beside a base model that stays loaded.

    DIRECTORY/onward-12-0a1b2c3d4e5f/adapter_config.json, adapter_model.safetensors     version 12, as it was published

A name holds the version and the beginning of its digest. So an adapter under this name is that version, whoever loaded
it and when, or it fails its probe. What SGLang itself does (0.5.23, srt/managers/tokenizer_control_mixin.py and
tokenizer_manager.py) decides when we unload adapters:

- Once --max-loaded-loras are loaded, the next load unloads the least recently used adapter, whoever loaded it. So we
  load nothing where there is no room.
- Unloading an adapter waits until its running answers are over, and blocks all loading until then. So an adapter that
  we no longer need stays until no request runs or its room is needed; the one that was dropped first goes first.
- A request that names an unloaded adapter makes SGLang load it again from its directory. So we keep the directory until
  the server no longer lists the adapter.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.errors import EngineUnavailable, WeightsError
from core.ids import PolicyRef
from core.model.adapters import check_base, check_fits, low_rank_of
from core.model.files import weight_files
from core.model.weights_digest import bytes_of, tensors_of
from core.ports import Opened, WeightsRef
from serving.engines.sglang.admin import AdapterRoom, Admin
from serving.weights.deltas.finite import check_finite

_DIGITS = 12  # of a version's digest in its adapter's name
_AT_ONCE_S = 2.0
_MOST = 16  # adapters on a server that has no limit of its own
_KINDS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj"})
_KINDS |= {"gate_proj", "up_proj", "down_proj"}
"""The modules for which SGLang computes adapters (0.5.23, srt/utils/common.py) and which our adapters name alike."""
logger = logging.getLogger(__name__)


def name_of(ref: WeightsRef) -> str:
    return f"onward-{ref.version}-{ref.digest[:_DIGITS]}"


def room_for(model: Path, rank: int, targets: Sequence[str]) -> AdapterRoom | None:
    """Return the adapters for which to start a server, of a rank and of `learner.lora.targets`; None: without any.

    Without targets each matrix of the model has an adapter, except the embeddings and the output matrix."""
    names = [name for name, tensor in tensors_of(weight_files(model)).items() if len(tensor.shape) == 2]
    able = (kinds_named(targets) or frozenset(name.split(".")[-2] for name in names)) & _KINDS
    return AdapterRoom(rank, able, _MOST) if rank and able else None


def kinds_named(targets: Iterable[str]) -> frozenset[str]:
    """Return the kinds of modules that `learner.lora.targets` names: `v_proj` of `self_attn.v_proj`."""
    return frozenset(target.rpartition(".")[2] for target in targets)


def why_merged(room: AdapterRoom | None, rank: int, kinds: Set[str]) -> str | None:
    """Return why a server cannot load an adapter of a rank, for these kinds of modules, by name; None where it can."""
    if room is None:
        return "it was not started with --enable-lora"
    if rank > room.max_rank:
        return f"its --max-lora-rank is {room.max_rank}, and the adapter's rank {rank}"
    others = sorted(kinds - room.targets) if "all" not in room.targets else []
    return f"its --lora-target-modules lacks {', '.join(others)}" if others else None


def kinds_of(opened: Opened) -> set[str]:
    """Return the kinds of modules that an adapter changes, such as `q_proj`. Raises WeightsError."""
    assert opened.adapter is not None
    return {name.split(".")[-2] for name in low_rank_of(opened.shards, opened.adapter)}


@dataclass(frozen=True)
class NamedAdapter:
    """A verified adapter in a directory of its own."""

    ref: WeightsRef
    name: str
    directory: Path
    size: int  # bytes


class NamedAdapters:
    """The adapters that this host holds, and which of them the server has.

    One thread at a time may change them; `drop` may be called from any thread at any time."""

    def __init__(self, admin: Admin, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._admin, self._directory = admin, directory.resolve()
        self._held: dict[PolicyRef, NamedAdapter] = {}
        self._dropped: list[str] = []  # names, the first dropped first
        self._listed: Mapping[str, str] = {}  # the server's: the directory of each
        self._proven: set[str] = set()  # names of those that passed their probe since the server's last start
        self._started = ""

    # ------------------------------------------------------------------------------------------ held here

    def held(self) -> dict[PolicyRef, NamedAdapter]:
        return dict(self._held)

    def put(self, ref: WeightsRef, opened: Opened, base: Opened) -> NamedAdapter:
        """Verify an adapter and write it to its directory.

        Raises WeightsError naming what does not fit, OSError where the disk has no room."""
        assert opened.adapter is not None
        if opened.digest != ref.digest:
            raise WeightsError(f"{ref.path}: has digest {opened.digest}, version {ref.version} has {ref.digest}")
        check_base(opened.adapter, base.digest, f"{ref.path}")
        shapes = {name: tensor.shape for name, tensor in tensors_of(base.shards).items()}
        check_fits(low_rank_of(opened.shards, opened.adapter), shapes)
        check_finite(opened.shards)
        made = NamedAdapter(ref, name_of(ref), self._directory / name_of(ref), bytes_of(tensors_of(opened.shards)))
        half = made.directory.with_suffix(".half")
        for left in (half, made.directory):
            shutil.rmtree(left, ignore_errors=True)
        try:
            _lay_out(opened, half)
            os.rename(half, made.directory)
        finally:
            shutil.rmtree(half, ignore_errors=True)
        if made.name in self._dropped:
            self._dropped.remove(made.name)
        self._held[ref.version] = made
        return made

    def drop(self, version: PolicyRef) -> None:
        """Hold an adapter no longer; `tidy` unloads it from the server, or a load that needs its room."""
        held = self._held.pop(version, None)
        if held is not None:
            self._dropped.append(held.name)

    # ------------------------------------------------------------------------------------------ on the server

    def names(self) -> dict[PolicyRef, str]:
        """Return the name of each held version that the server has and whose probe passed there."""
        listed, proven = self._listed, self._proven
        return {v: each.name for v, each in self.held().items() if each.name in listed and each.name in proven}

    def meet(self, started: str) -> None:
        """Note the server's start: probes that passed before a restart no longer count."""
        if started != self._started:
            self._proven.clear()
        self._started = started

    def refresh(self) -> None:
        """Ask which adapters the server has. Raises EngineUnavailable."""
        self._listed = self._admin.adapters()
        self._proven.intersection_update(self._listed)
        mine = (name for name, place in self._listed.items() if Path(place).parent == self._directory)
        wanted = {each.name for each in self.held().values()}
        self._dropped += sorted(name for name in mine if name not in wanted and name not in self._dropped)
        for gone in [name for name in self._dropped if name not in self._listed]:
            self._dropped.remove(gone)
            shutil.rmtree(self._directory / gone, ignore_errors=True)

    def bring(self, held: NamedAdapter, room: AdapterRoom, wrong: Callable[[], str | None]) -> None:
        """Have the server load an adapter if it lacks it, and probe it; an adapter that fails its probe is unloaded.

        `wrong` probes it. Raises WeightsError for an adapter that cannot serve, EngineUnavailable without room."""
        self.refresh()
        if held.name not in self._listed:
            self._make_room(held, room)
            self._load(held)
        if held.name in self._proven:
            return
        why = wrong()
        if why is not None:
            self._unload(held.name)
            raise WeightsError(f"version {held.ref.version}: the engine loaded another adapter: {why}")
        self._proven.add(held.name)
        logger.info("version %s is on the server as %s", held.ref.version, held.name)

    def _load(self, held: NamedAdapter) -> None:
        try:
            self._admin.load_adapter(held.name, held.directory, held.size)
        except WeightsError:
            self.refresh()
            if held.name not in self._listed:  # else a request made the server load it meanwhile
                self._unload(held.name)  # some of the ranks may have loaded it
                raise
        self.refresh()
        if held.name not in self._listed:
            raise WeightsError(
                f"version {held.ref.version}: SGLang said that it loaded {held.name}, but does not list it"
            )

    def _make_room(self, held: NamedAdapter, room: AdapterRoom) -> None:
        most = room.max_loaded or _MOST
        for name in self.unwanted():
            if len(self._listed) >= most:
                self._unload(name)
                self.refresh()
        if len(self._listed) >= most:
            others = len(self._listed.keys() - {each.name for each in self.held().values()})
            raise EngineUnavailable(
                f"no room for version {held.ref.version}: the server has {len(self._listed)} adapters of at most "
                f"{most}, {others} of them not this host's; start it with a larger --max-loaded-loras, or unload "
                "some of those"
            )

    def unwanted(self) -> list[str]:
        """Return the names of the adapters that this host dropped and the server still has, the first dropped first."""
        return [name for name in self._dropped if name in self._listed]

    def tidy(self) -> None:
        """Unload the dropped adapters while the server runs no request.

        If a request for one of them came meanwhile, do not wait for it: the server finishes the unloading by itself."""
        with suppress(EngineUnavailable):
            for name in self.unwanted():
                self._unload(name, _AT_ONCE_S)
            self.refresh()

    def _unload(self, name: str, timeout_s: float | None = None) -> None:
        """Unload an adapter, if the server has it."""
        self._proven.discard(name)
        try:
            self._admin.unload_adapter(name, timeout_s)
        except WeightsError as error:
            logger.debug("%s was not unloaded: %s", name, error)


def _lay_out(opened: Opened, directory: Path) -> None:
    """Write an adapter in peft's format."""
    assert opened.adapter is not None
    directory.mkdir()
    for place, shard in enumerate(opened.shards):
        name = "adapter_model" if len(opened.shards) == 1 else f"adapter_model-{place:05d}"
        shutil.copyfile(shard, directory / f"{name}.safetensors")
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "r": opened.adapter.rank,
        "lora_alpha": opened.adapter.alpha,
        "target_modules": sorted(kinds_of(opened)),
    }
    (directory / "adapter_config.json").write_text(json.dumps(told))
