"""One of three processes that do an update together: all three, then the first two.

    one_update_script.py RANK DIRECTORY

The first writes the results into the directory."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from drifted_world import updated
from torch.distributed.device_mesh import init_device_mesh

from learner.model.ranks import Ranks

CASE, TOKENS = "kto", 160
COUNTS = (3, 2)


def main(rank: int, directory: Path) -> None:
    for count in COUNTS:
        if rank >= count:
            return
        dist.init_process_group("gloo", init_method=f"file://{directory}/meet-{count}", rank=rank, world_size=count)
        ranks = Ranks(rank, count, init_device_mesh("cpu", (count,)))
        found = updated(CASE, ranks, settings={"compute.micro_batch_tokens": TOKENS})
        if ranks.leads:
            torch.save(vars(found), directory / f"found-{count}")
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
