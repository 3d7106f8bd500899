"""Two clusters and one bucket: home learns for both, the edge is cut off, killed and comes back."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from buckets import point_to
from erased_files import files_with
from service_tree import Service, wait_for
from services import require_services
from traffic import Traffic, check_trained_once, versions, wait_for_more

from bench.clusters.cut_line import Line
from deploy.services.s3 import S3
from onward.wiring.foundation import open_foundation

REUNION_S = 120.0


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    require_services()  # skips where nothing is installed, fails in CI
    server = S3(tmp_path / "s3")
    server.up()
    server.make_bucket("onward")
    yield server
    server.kill()


@pytest.fixture
def line(s3: S3) -> Iterator[Line]:
    made = Line(s3.ports["port"])
    yield made
    made.close()


SHARED = {
    "blobs": "s3://onward/blobs",
    "clusters.url": "s3://onward/clusters",
    "clusters.every_s": 0.2,
}
HOME = SHARED | {
    "clusters.role": "home",
    "serving.cluster": "home",
    "learner.batch.turns": 16,
    "learner.batch.min_turns": 8,
    "learner.batch.max_wait_s": 0.5,
    "learner.checkpoints.every_s": 2,
}
EDGE = SHARED | {"clusters.role": "edge", "serving.cluster": "edge", "learner.enabled": "false"}


@pytest.fixture
def clusters(s3: S3, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, Service]]:
    point_to(s3, monkeypatch)  # the test looks into blobs itself
    home = Service(tmp_path / "home", HOME)
    edge = Service(tmp_path / "edge", EDGE, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}"})
    for service in (home, edge):
        service.directory.mkdir()
        service.start()
    yield home, edge
    for service in (home, edge):
        service.stop()


def live(service: Service) -> int:
    return int(service.get("/v1/policies")["live"])


def has_all(service: Service, turns: list[str]) -> bool:
    foundation = open_foundation(service.directory, service.overrides)
    try:
        with foundation.store.look() as view:
            return set(turns) <= set(view.turns.get_many(turns))  # type: ignore[arg-type]
    finally:
        foundation.close()


@pytest.mark.timeout(1200)
def test_an_edge_that_was_cut_off_and_killed_comes_back_with_everything(
    clusters: tuple[Service, Service], line: Line
) -> None:
    """It serves meanwhile, home learns from both, and nothing is lost or learned twice."""
    home, edge = clusters
    at_home, at_edge = Traffic(home, threads=2), Traffic(edge, threads=2)
    wait_for(lambda: live(edge) >= 3, 120, "versions at the edge")

    line.cut()
    then, newest = live(edge), versions(home)  # which no edge can have heard of more than
    before = len(at_edge.turns)
    wait_for_more(home, 3)
    wait_for(lambda: len(at_edge.turns) > before + 5, 60, "answers of an edge that is cut off")
    assert then <= live(edge) <= newest, "what it had fetched, and nothing newer"
    edge.kill()
    at_edge.stop()
    line.mend()
    edge.start()
    wait_for(lambda: live(edge) > newest, REUNION_S, "what home released meanwhile")

    again = Traffic(edge, threads=2)
    home.kill()
    at_home.stop()
    home.start()
    wait_for_more(home, 2)
    again.stop()
    said = [*at_edge.turns, *again.turns, *at_home.turns]
    wait_for(lambda: has_all(home, said), 120, "everything that either cluster acknowledged, at home")
    wait_for(lambda: live(home) == live(edge), REUNION_S, "one version everywhere")
    trained = {turn.inference_id for made in check_trained_once(home) for turn in made.turns}
    assert trained & set(at_edge.turns), "home learns from what the edge was told"
    assert trained & set(at_home.turns)


@pytest.mark.timeout(1200)
def test_a_user_who_is_erased_at_an_edge_is_erased_everywhere(
    clusters: tuple[Service, Service], line: Line, tmp_path: Path
) -> None:
    """Home hears of it through the bucket, which keeps no word either; what was not sent yet comes as tombstones."""
    home, edge = clusters
    word = "Zugspitzfeuersalamander"

    def say(service: Service) -> str:
        answer = service.chat(f"{word} total(xs)", user="mallory", max_tokens=8)
        return str(answer["onward"]["inference_id"])

    said = [say(home), say(edge)]
    wait_for(lambda: has_all(home, said), 120, "what was said at the edge, at home")
    line.cut()
    late = say(edge)
    wait_for(lambda: has_all(edge, [late]), 120, "what was said meanwhile")
    given = httpx.delete(f"{edge.url}/v1/users/mallory", timeout=60).json()
    line.mend()

    def done(service: Service) -> bool:
        orders = service.get("/v1/erasures")["data"]
        return bool(orders) and all(each["state"] == "done" for each in orders)

    wait_for(lambda: done(home) and done(edge), 180, "the end of the erasure in both clusters")
    (theirs,) = home.get("/v1/erasures")["data"]
    assert theirs["origins"] == [f"edge/{given['erasure_id']}"]
    assert edge.get("/v1/erasures/1")["steps"]["clusters"]["removed"] == {"clusters": 1}

    def listed() -> dict[str, tuple[str, int]]:
        return {each["cluster"]: (each["role"], each["behind"]) for each in edge.get("/v1/clusters")["data"]}

    wait_for(lambda: listed() == {"home": ("home", 0), "edge": ("edge", 0)}, what="both at the end of the other's log")
    wait_for(lambda: has_all(home, [late]), what="the tombstone of what was said late, at home")
    assert home.get(f"/v1/turns/{late}")["stored"] is False
    for service in clusters:
        service.stop()
    assert files_with(tmp_path, word) == []
