"""The processes that train together, as torchrun starts them.

Each holds its shard of the weights (FSDP2, the design of arXiv:2304.11277) and computes its share of every update's
micro-batches. One of them leads. A process that is alone leads itself, and none of this costs it anything."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")
_IDLE = timedelta(days=365)  # the others hear nothing while no batch is due; a leader that dies is noticed at once


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1
    mesh: DeviceMesh | None = None
    channel: dist.ProcessGroup | None = None  # by which the leader tells the others what to do
    files: dist.ProcessGroup | None = None  # by which they agree on the files that they write together, in a thread

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, parts: Sequence[T]) -> Iterator[tuple[T, bool]]:
        """Yield this process's parts, each with whether it counts.

        All processes must compute equally often, so those with one part less compute one again that does not count."""
        for start in range(0, len(parts), self.count):
            index = start + self.rank
            yield (parts[index], True) if index < len(parts) else (parts[start], False)

    def gather(self, mine: T) -> list[T]:
        """Return the objects of all processes, by rank."""
        if self.count == 1:
            return [mine]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found

    def total(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the sums over all processes, by figure."""
        if self.count == 1:
            return sums
        every = self.gather(sums)
        return {name: sum(each.get(name, 0.0) for each in every) for name in sorted({n for s in every for n in s})}

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average the gradients of parameters that every process holds in full."""
        for parameter in parameters if self.count > 1 else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.count

    def tell(self, what: object) -> None:
        """Send an object from the leader to all others."""
        assert self.leads
        if self.count > 1:
            dist.broadcast_object_list([what], src=0, group=self.channel)

    def hear(self) -> Any:
        """Receive what the leader sends. Raises RuntimeError when the leader is gone."""
        assert not self.leads
        told: list[Any] = [None]
        dist.broadcast_object_list(told, src=0, group=self.channel)
        return told[0]


ALONE = Ranks()


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started with this one, if it did.

    `device` is `cpu`, or `cuda`: then each process uses one GPU."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    kind = device.split(":")[0]
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo" if kind == "cpu" else f"cpu:gloo,{kind}:nccl")
    try:
        count = dist.get_world_size()
        mesh = init_device_mesh(kind, (count,))
        channel, files = (dist.new_group(backend="gloo", timeout=_IDLE) for _ in range(2))
        yield Ranks(dist.get_rank(), count, mesh, channel, files)
    finally:
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor for the leader.

    All processes must call this at the same time; all but the leader get an empty tensor."""
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = tensor.full_tensor()
    return gathered if dist.get_rank() == 0 else gathered.new_empty(0)


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Shard `tensor`, which every process has in full, as `other` is."""
    if not isinstance(other, DTensor) or tensor.shape != other.shape:
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """Return what this process has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
