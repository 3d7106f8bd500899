"""One of the processes that share a model.

    shards_script.py RANK COUNT LARGE DIRECTORY

It loads the shipped model, whose tensors the first process writes; then the one in LARGE, and writes by how much its
memory grew at most until that was loaded, and until it had been tried."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from logged_world import MODEL
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from core.settings import LoraSettings
from learner.model import loading, policy_model
from learner.model.policy_model import PolicyModel


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def loaded(directory: Path, mesh: DeviceMesh) -> PolicyModel:
    return PolicyModel(directory, "cpu", adapters=(LoraSettings(rank=1), 0), mesh=mesh)


def main(rank: int, count: int, large: Path, directory: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,))
    small = loaded(MODEL, mesh)  # first, so that what it imports is not counted
    tensors = small.tensors()
    if rank == 0:
        torch.save(tensors, directory / "tensors.pt")
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the highest use of memory so far is forgotten
    before_kib, grown = _status_kib("VmRSS"), list[int]()

    def fill(*given: Any) -> None:
        loading.fill(*given)
        grown.append(1024 * (_status_kib("VmHWM") - before_kib))

    policy_model.fill = fill  # type: ignore[assignment]
    policy = loaded(large, mesh)
    grown.append(1024 * (_status_kib("VmHWM") - before_kib))
    own = sum(each.to_local().nbytes for each in policy.model.parameters())  # type: ignore[attr-defined]
    found = {"loaded": grown[0], "tried": grown[1], "own": own}
    (directory / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
