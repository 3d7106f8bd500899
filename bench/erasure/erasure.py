"""Erasure: whether every byte is gone, whether the weights are those of a run that never had it, and what it costs.

Each trial draws a past of two users and where the erased one stands in it, teaches it to a learner, erases him, and
teaches another learner the past without him. Every file is then read, as it lies there and unpacked, for his word. The
cost is of a longer past, whose log holds many more turns: `--turns` of them."""

import argparse
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import torch
import zstandard

from api.operator.erasures.preview import preview
from bench.erasure.erased_world import ALICE, MALLORY, NAMESPACE, Said, World, files, open_world, said
from bench.table import Row, report
from core.events import Topic
from ingest.sealing import Seals

WORD, OTHER = "Zugspitzfeuersalamander", "ordinary"
WORDS = {MALLORY: WORD, ALICE: OTHER}
UPDATES, BATCH, LEAST = 3, 4, 2
LONG_UPDATES, LONG_BATCH, FIRST = 120, 8, 80
WITHIN = 0.2


def is_clean(trial: int, place: Path) -> tuple[bool, int]:
    """Run one trial; return whether the weights are equal, and in how many files the word is left."""
    rng = random.Random(trial)
    chosen = [rng.sample(range(BATCH), rng.randrange(BATCH - LEAST + 1)) for _ in range(UPDATES)]
    chosen[rng.randrange(UPDATES)] = [rng.randrange(BATCH)]  # he spoke once at least
    mine = {number * BATCH + place for number, places in enumerate(chosen) for place in places}
    past = [said(n, MALLORY if n in mine else ALICE, WORD if n in mine else OTHER, rng) for n in range(UPDATES * BATCH)]
    batches = [past[start : start + BATCH] for start in range(0, len(past), BATCH)]
    with closing(open_world(place / "with", BATCH)) as world:
        teach(world, batches)
        world.obey(world.order(MALLORY))
        found = world.newest.digest
    left = sum(WORD.encode() in unpacked(raw) for raw in files(place / "with"))
    with closing(open_world(place / "without", BATCH)) as other:
        teach(other, [[pair for pair in batch if pair[0].user_id != MALLORY] for batch in batches])
        return other.newest.digest == found, left


def teach(world: World, batches: Sequence[Sequence[Said]]) -> None:
    for batch in batches:
        if batch:
            world.log_turns(batch, WORDS)
            world.learn(batch)


def unpacked(raw: bytes) -> bytes:
    for found in re.finditer(re.escape(zstandard.FRAME_HEADER), raw):
        with suppress(zstandard.ZstdError):  # four such bytes begin no frame
            raw += zstandard.ZstdDecompressor().decompressobj().decompress(raw[found.start() :])
    return raw


def costs(turns: int, place: Path) -> list[Row]:
    """Return what it takes to erase a user of whom the updates from the FIRST on learned, among so many turns."""
    rng = random.Random(7)
    learned = LONG_UPDATES * LONG_BATCH
    mine = {n for n in range(FIRST * LONG_BATCH, learned) if n % LONG_BATCH == 1}
    past = [said(n, MALLORY if n in mine else ALICE, WORD if n in mine else OTHER, rng) for n in range(turns)]
    with closing(open_world(place / "long", LONG_BATCH)) as world:
        world.log_turns(past, WORDS)
        began_s = time.perf_counter()
        for start in range(0, learned, LONG_BATCH):
            world.learn(past[start : start + LONG_BATCH])
        whole_s = time.perf_counter() - began_s
        with world.store.look() as view:
            asked = world.blobs, world.clock, "local", NAMESPACE, "user", MALLORY
            told = preview(view, *asked)  # type: ignore[arg-type]
        number = world.order(MALLORY)
        began_s = time.perf_counter()
        world.learner.tick()  # back to before the first use, and the first update made again
        while world.learner.tick() == 0.0:
            pass
        again_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        world.obey(number)
        swept_s = time.perf_counter() - began_s
    share = (LONG_UPDATES - FIRST) / LONG_UPDATES
    off = abs(again_s - told["seconds"]) / told["seconds"]
    return [
        Row("updates made again", told["updates"], "updates", "updates in all", told["updates"] / LONG_UPDATES, share),
        Row.at_most("learning again, the way back included", again_s, "s", "all updates", again_s / whole_s, share),
        Row.at_most("off what was said beforehand", off, "share", f"{told['seconds']:.1f} s", off, WITHIN),
        Row(f"all other places, among {turns} turns", swept_s, "s", "a turn", swept_s / turns),
    ]


def sealing(place: Path, count: int = 3000) -> list[Row]:
    """Return what it costs to seal a record, and to open it."""
    with closing(open_world(place / "seals", BATCH)) as world:
        seals = Seals(world.store, world.clock)
        rng = random.Random(1)
        turn, _ = said(1, ALICE, OTHER, rng)
        seals.seal(turn)
        plain_s = taken(lambda: world.log.append_blocking(Topic.TURNS, [turn]), 200)
        raw = seals.seal(turn)
        seal_s, open_s = taken(lambda: seals.seal(turn), count), taken(lambda: seals.opened([raw] * 100), 20) / 100
        first_s = statistics.median(
            taken(lambda number=number: seals.seal(said(number, ALICE, OTHER, rng)[0]), 1) for number in range(100, 150)
        )
    return [
        Row("sealing a turn whose session has a key", seal_s * 1e6, "us", "an append of one turn", seal_s / plain_s),
        Row("the first turn of a session: its key is made", first_s * 1e6, "us", "an append", first_s / plain_s),
        Row("opening a turn, a hundred at once", open_s * 1e6, "us", "sealing it", open_s / seal_s),
    ]


def taken(do: Callable[[], object], times: int) -> float:
    """Return the mean seconds of a call."""
    began_s = time.perf_counter()
    for _ in range(times):
        do()
    return (time.perf_counter() - began_s) / times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--turns", type=int, default=100_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    equal, left = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for trial in range(given.trials):
            is_equal, files_left = is_clean(trial, root / str(trial))
            shutil.rmtree(root / str(trial))
            equal, left = equal + is_equal, left + files_left
            print(f"trial {trial + 1} of {given.trials}: {equal} equal, {left} files with the word", flush=True)
        rows = [
            Row.at_least("weights bit-equal to a run without", equal, "trials", "trials", equal / given.trials, 1.0),
            Row("files with a word of the erased user", left, "files", f"{given.trials} trials", left, 0, left == 0),
            *costs(given.turns, root),
            *sealing(root),
        ]
    report("erasure", rows)


if __name__ == "__main__":
    main()
