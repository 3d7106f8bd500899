"""One of a learner's processes, as torchrun starts it; the first leads, on the world in a directory.

    ranks_script.py DIRECTORY UPDATES SETTINGS

The leader makes this many updates and prints the figures of each as a line of JSON."""

import json
import sys
from pathlib import Path

from logged_world import open_world

from core.ids import ANCHOR, base_ref
from core.stages.rounds import Rounds
from learner.model.ranks import Ranks, joined_ranks
from learner.rank_group import dismiss, follow


def lead(directory: Path, updates: int, settings: dict[str, object], ranks: Ranks) -> None:
    world = open_world(directory)
    learner = world.learner(ranks=ranks, settings=settings)
    rounds = Rounds("learner", learner)
    before = (learner.newest or ANCHOR).version
    while (learner.newest or ANCHOR).version < before + updates:
        assert rounds.step(0.0), "nothing is left to learn from"
    with world.store.look() as view:
        for version in range(before + 1, before + updates + 1):
            made = view.policies.get(base_ref(version))
            assert made is not None
            sys.stdout.write(json.dumps(made.metrics) + "\n")
    learner.close()
    world.close()


def main() -> None:
    # In a function, so that nothing holds a process group when the interpreter ends: its threads would abort it.
    with joined_ranks("cpu") as of_all:
        if of_all.leads:
            lead(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), of_all)
            dismiss(of_all)
        else:
            follow(of_all)


if __name__ == "__main__":
    main()
