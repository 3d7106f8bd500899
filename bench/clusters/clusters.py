"""Two clusters that meet in a bucket: the edge is cut off, killed, restarted and reunited, with users at both.

    python -m bench clusters [--cut 60]

Two whole services with the settings that are the default, and a real S3 server (`deploy/services/s3.py`). The edge's
way to the bucket is cut. It serves for `--cut` seconds more, is killed with -9, and is started, still cut off; the line
is mended once that start has come up or has ended, and in that case the edge is started again. Once both serve one
version, home is killed and started, too. Then everything that was acknowledged to any user is looked for: in home's
store and the edge's own, among home's rewards, and in the manifests of home's versions."""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.clusters.cluster_counts import Counts, settle
from bench.clusters.cluster_users import Span, Users
from bench.clusters.cluster_world import Cluster, World, two_clusters, wait_for
from bench.table import Row, report

REUNION_GOAL_S = 30.0
_TIMEOUT_S = 300.0
_EVER: Span = (0.0, float("inf"))


@dataclass(frozen=True)
class Reunion:
    """What came after the line was mended: seconds until the edge served what home did then, and until both served one.

    `missed`: how many versions home was ahead when the line was mended."""

    caught_up_s: float
    same_s: float
    missed: int


@dataclass(frozen=True)
class Told:
    """What happened, and what became of it.

    `cut` is from the cut to the reunion, `served` that from the cut to the kill."""

    cut: Span
    served: Span
    started_cut_off: bool
    reunion: Reunion
    counts: Counts
    at_home: Users
    at_edge: Users


def lived(world: World, cut_s: float) -> Told:
    """Cut, kill, restart, reunite and count. Raises SystemExit where something never comes."""
    home, edge = world.home, world.edge
    with ExitStack() as stack:
        at_home, at_edge = (stack.enter_context(Users(each)) for each in (home, edge))
        wait_for(lambda: edge.live() >= 3, "versions at the edge", _TIMEOUT_S)
        began_s = time.monotonic()
        had, is_up = cut_off(world, cut_s)
        mended_s = time.monotonic()
        reunion = reunite(world, had)
        then = home.live()
        home.kill()
        home.start()
        wait_for(lambda: home.live() >= then + 2, "further versions at home", _TIMEOUT_S)
        with home.opened() as of_home, edge.opened() as of_edge:
            counts = settle(of_home, of_edge, at_home, at_edge)
    return Told((began_s, mended_s), (began_s, edge.away[0][0]), is_up, reunion, counts, at_home, at_edge)


def cut_off(world: World, cut_s: float) -> tuple[int, bool]:
    """Cut the edge off, kill it after so many seconds, start it; return its last version, and whether it came up."""
    edge = world.edge
    until_s = time.monotonic() + cut_s
    world.line.cut()
    if edge.reaches_the_bucket():
        raise SystemExit("the edge still reaches the bucket over a line that is cut")
    time.sleep(max(0.0, until_s - time.monotonic()))
    had = edge.live()
    edge.kill()
    return had, edge.comes_up()


def reunite(world: World, had: int) -> Reunion:
    """Mend the line, and wait until both serve one version while home goes on. `had`: the edge's version."""
    home, edge = world.home, world.edge
    there = home.live()
    mended_s = time.monotonic()
    world.line.mend()
    if not edge.runs:
        edge.start()
    wait_for(lambda: edge.live() >= there, "home's version at the edge", _TIMEOUT_S)
    caught_up_s = time.monotonic() - mended_s
    wait_for(lambda: alike(home, edge), "one version at both", _TIMEOUT_S)
    return Reunion(caught_up_s, time.monotonic() - mended_s, there - had)


def alike(home: Cluster, edge: Cluster) -> bool:
    """Return whether one version serves at both: home's is looked at before and after, since it moves on."""
    before = home.live()
    return edge.live() == before == home.live()


def rows_of(told: Told) -> Iterator[Row]:
    counts, reunion, edge = told.counts, told.reunion, told.at_edge
    everyone = told.at_home, told.at_edge
    failed = sum(len(users.unexplained(_EVER)) for users in everyone)
    while_cut, served_s = len(edge.unexplained(told.served)), told.served[1] - told.served[0]
    yield _none("acknowledged by either and lost", counts.lost, f"of {counts.turns} turns, {counts.outcomes} outcomes")
    yield _none("rewarded or trained twice", counts.twice, f"of {len(counts.trained)} trained")
    same_s = reunion.same_s
    yield Row.at_most("from reunion to one version at both", same_s, "s", "30 s", same_s / REUNION_GOAL_S, 1.0)
    yield Row("from reunion to what home served then", reunion.caught_up_s, "s")
    yield Row("versions that the edge was behind at reunion", reunion.missed, "versions")
    served = f"requests that failed at the edge, cut off for {served_s:.0f} s"
    yield _none(served, while_cut, f"of {edge.begun(told.served)}")
    yield _none("requests that failed in all, but those to a service that was killed", failed, _requests(everyone))
    said = edge.said(told.cut)
    learned = len(said & counts.trained)
    yield Row(
        "turns of the edge while it was cut off that home learned from", learned, "turns", "all", learned / len(said)
    )
    yield Row("starts while it was cut off that came up", float(told.started_cut_off), "of 1")


def _requests(everyone: tuple[Users, ...]) -> str:
    return f"of {sum(users.begun(_EVER) for users in everyone)}"


def _none(metric: str, value: int, unit: str) -> Row:
    return Row(metric, value, unit, goal=0, holds=value == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cut", type=float, default=60.0, help="seconds for which the edge is cut off (default: 60)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onward-clusters-") as place, two_clusters(Path(place)) as world:
        told = lived(world, given.cut)
    for failure in (each for users in (told.at_home, told.at_edge) for each in users.unexplained(_EVER)):
        print(f"failed: {failure.why}")
    report("clusters", list(rows_of(told)))


if __name__ == "__main__":
    main()
