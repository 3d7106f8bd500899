"""Adapters on one SGLang server, each under a name that never means anything else, beside a base that stays loaded.

    DIRECTORY/onward-12-0a1b2c3d4e5f/adapter_config.json, adapter_model.safetensors     version 12, as it was published

A name holds the version and the beginning of its digest. So an adapter that the server has under it is that version's
and no other's, whoever loaded it and when, or it fails its probe. What SGLang does by itself (0.5.23,
srt/managers/tokenizer_control_mixin.py and tokenizer_manager.py) decides when adapters go:

- Beyond --max-loaded-loras a load unloads whichever adapter was used longest ago, whoever loaded that. So nothing is
  loaded where there is no room.
- To unload an adapter waits for the answers that it gives, and no other one is loaded meanwhile. So one that nobody
  wants stays until no request is under way, or until its room is needed; then the one goes that was dropped first.
- A request for an adapter that was unloaded loads it again from its directory, which therefore stays as long.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
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
_MOST = 16  # adapters on a server that sets no limit of its own
_KINDS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj"})
_KINDS |= {"gate_proj", "up_proj", "down_proj"}
"""The modules that SGLang computes adapters beside (0.5.23, srt/utils/common.py) under the names that ours have."""
logger = logging.getLogger(__name__)


def name_of(ref: WeightsRef) -> str:
    return f"onward-{ref.version}-{ref.digest[:_DIGITS]}"


def room_for(model: Path, rank: int, targets: Sequence[str]) -> AdapterRoom | None:
    """Return what a server is started to take where adapters of a rank are learned; rank 0: none are.

    Without `targets` adapters are beside all matrices of the model but those of its vocabulary."""
    kinds = {name.split(".")[-2] for name, tensor in tensors_of(weight_files(model)).items() if len(tensor.shape) == 2}
    able = frozenset(targets or kinds) & _KINDS
    return AdapterRoom(rank, able, _MOST) if rank and able else None


def misfit(opened: Opened, room: AdapterRoom) -> str | None:
    """Return why a server cannot take an adapter unmerged, or None. Raises WeightsError for what is no adapter."""
    assert opened.adapter is not None
    if opened.adapter.rank > room.max_rank:
        return f"its rank is {opened.adapter.rank}, and the server's --max-lora-rank {room.max_rank}"
    others = sorted(_modules(opened) - room.targets) if "all" not in room.targets else []
    return f"it changes {', '.join(others)}, not among the server's --lora-target-modules" if others else None


def _modules(opened: Opened) -> set[str]:
    """Return the kinds of modules that an adapter changes, such as `q_proj`."""
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
    """Those that are held on this host, and which of them the server has.

    One thread at a time changes anything, but for `drop`, which any may call."""

    def __init__(self, admin: Admin, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._admin, self._directory = admin, directory.resolve()
        self._held: dict[PolicyRef, NamedAdapter] = {}
        self._dropped: list[str] = []  # names, the first dropped first
        self._listed: Mapping[str, str] = {}  # the server's: the directory of each
        self._proven: set[str] = set()  # names, since the server's last start
        self._started = ""

    # ------------------------------------------------------------------------------------------ held here

    def held(self) -> dict[PolicyRef, NamedAdapter]:
        return dict(self._held)

    def put(self, ref: WeightsRef, opened: Opened, base: Opened) -> NamedAdapter:
        """Verify and lay out. Raises WeightsError naming what does not fit, OSError where the disk has no room."""
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
        """Want an adapter no longer; it leaves the server by `tidy`, or when there is no room."""
        held = self._held.pop(version, None)
        if held is not None:
            self._dropped.append(held.name)

    # ------------------------------------------------------------------------------------------ on the server

    def names(self) -> dict[PolicyRef, str]:
        """Return the name of each held version that the server has, and that was shown to be right there."""
        listed, proven = self._listed, self._proven
        return {v: each.name for v, each in self.held().items() if each.name in listed and each.name in proven}

    def meet(self, started: str) -> None:
        """Take note of the server's start: what was proven of an earlier one is proven no longer."""
        if started != self._started:
            self._proven.clear()
        self._started = started

    def refresh(self) -> None:
        """Ask which adapters the server has. Raises EngineUnavailable."""
        self._listed = self._admin.adapters()
        self._proven.intersection_update(self._listed)
        mine = (name for name, place in self._listed.items() if Path(place).parent == self._directory)
        wanted = {each.name for each in self._held.values()}
        self._dropped += sorted(name for name in mine if name not in wanted and name not in self._dropped)
        for gone in [name for name in self._dropped if name not in self._listed]:
            self._dropped.remove(gone)
            shutil.rmtree(self._directory / gone, ignore_errors=True)

    def bring(self, held: NamedAdapter, room: AdapterRoom, wrong: Callable[[], str | None]) -> None:
        """Have the server load an adapter, unless it has it, and prove it; what fails there is unloaded.

        `wrong` probes it. Raises WeightsError for one that cannot serve, EngineUnavailable without room."""
        self.refresh()
        if held.name not in self._listed:
            self._make_room(held, room)
            self._load(held)
        if held.name in self._proven:
            return
        why = wrong()
        if why is not None:
            self._unload(held.name)
            raise WeightsError(f"version {held.ref.version}: the adapter that the engine loaded is another: {why}")
        self._proven.add(held.name)
        logger.info("version %s is on the server as %s", held.ref.version, held.name)

    def _load(self, held: NamedAdapter) -> None:
        try:
            self._admin.load_adapter(held.name, held.directory, held.size)
        except WeightsError:
            self.refresh()
            if held.name not in self._listed:  # else a request had it loaded meanwhile
                self._unload(held.name)  # half of it, on some of the ranks
                raise
        self.refresh()
        if held.name not in self._listed:
            raise WeightsError(f"version {held.ref.version}: SGLang said that it loaded {held.name}, and lists it not")

    def _make_room(self, held: NamedAdapter, room: AdapterRoom) -> None:
        most = room.max_loaded or _MOST
        while len(self._listed) >= most:
            gone = next(iter(self.unwanted()), None)
            if gone is None:
                wanted = {each.name for each in self._held.values()}
                others = len(self._listed.keys() - wanted)
                raise EngineUnavailable(
                    f"no room for version {held.ref.version}: the server has {len(self._listed)} adapters of at most "
                    f"{most}, {others} of them not this host's; start it with a larger --max-loaded-loras, or unload "
                    "some of those"
                )
            self._unload(gone)
            self.refresh()

    def unwanted(self) -> list[str]:
        """Return the names of those of ours that the server has, and that nobody wants."""
        return [name for name in self._dropped if name in self._listed]

    def tidy(self) -> None:
        """Unload what nobody wants, from a server that answers nobody.

        One that somebody has asked for meanwhile is not waited for: the server goes on unloading it by itself."""
        with suppress(EngineUnavailable):
            for name in self.unwanted():
                self._unload(name, _AT_ONCE_S)
            self.refresh()

    def _unload(self, name: str, timeout_s: float | None = None) -> None:
        """Unload one of ours; one that is not there is gone, too."""
        self._proven.discard(name)
        try:
            self._admin.unload_adapter(name, timeout_s)
        except WeightsError as error:
            logger.debug("%s was not unloaded: %s", name, error)


def _lay_out(opened: Opened, directory: Path) -> None:
    """Write an adapter as peft does."""
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
        "target_modules": sorted(_modules(opened)),
    }
    (directory / "adapter_config.json").write_text(json.dumps(told))
