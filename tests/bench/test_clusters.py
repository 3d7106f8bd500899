"""What the benchmark of two clusters counts, and the line that it cuts."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bench.clusters.cluster_counts import Counts
from bench.clusters.cluster_users import Failure, Users
from bench.clusters.cluster_world import Cluster
from bench.clusters.clusters import Reunion, Told, rows_of
from bench.clusters.cut_line import Line
from core.ids import InferenceId

WHOLE = Counts(2, 1, {InferenceId("a")}, 0, 0, 0, 0, 0, 0)


@pytest.fixture
def echo() -> Iterator[int]:
    """Yield the port of a server that sends back what it gets, one connection at a time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                connection, _ = server.accept()
                with connection, suppress(ConnectionError):
                    while data := connection.recv(100):
                        connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        yield port
        over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


def test_a_line_carries_until_it_is_cut_and_again_once_it_is_mended(echo: int) -> None:
    line = Line(echo)

    def heard(connection: socket.socket) -> bytes:
        """Return what comes back, nothing from a connection that was closed."""
        with suppress(ConnectionError):
            connection.sendall(b"word")
            return connection.recv(100)
        return b""

    def answer() -> bytes:
        with socket.create_connection(("127.0.0.1", line.port), timeout=10) as connection:
            return heard(connection)

    try:
        assert answer() == b"word"
        with socket.create_connection(("127.0.0.1", line.port), timeout=10) as open_before:
            assert heard(open_before) == b"word"
            line.cut()
            assert open_before.recv(100) == b""
        assert answer() == b""
        line.mend()
        assert answer() == b"word"
    finally:
        line.close()


@pytest.fixture
def users(tmp_path: Path) -> Users:
    """Return users of a cluster that was away from 10 to 20, who asked at 5, 12 and 30; the last two failed."""
    cluster = Cluster(tmp_path / "edge", {}, {})
    cluster.away.append((10.0, 20.0))
    made = Users(cluster)
    made.turns[InferenceId("a")] = 5.5
    made.requests += [5.0, 12.0, 30.0]
    made.failures += [Failure((12.0, 12.5), "refused"), Failure((30.0, 30.5), "503")]
    return made


def test_failures_are_explained_by_a_kill_of_that_time_alone(users: Users) -> None:
    assert [failure.why for failure in users.unexplained((0.0, 40.0))] == ["503"]
    assert users.unexplained((0.0, 20.0)) == []
    assert users.begun((0.0, 20.0)) == 2
    assert users.said((0.0, 5.2)) == set()


@pytest.mark.parametrize(
    ("counts", "same_s", "broken"),
    [
        pytest.param(WHOLE, 29.0, set(), id="all is well"),
        pytest.param(replace(WHOLE, untrained=1), 29.0, {"acknowledged by either and lost"}, id="never learned"),
        pytest.param(replace(WHOLE, lost_outcomes=1), 29.0, {"acknowledged by either and lost"}, id="never came"),
        pytest.param(replace(WHOLE, trained_twice=1), 29.0, {"rewarded or trained twice"}, id="learned twice"),
        pytest.param(WHOLE, 31.0, {"from reunion to one version at both"}, id="late"),
    ],
)
def test_rows_hold_what_was_promised(users: Users, counts: Counts, same_s: float, broken: set[str]) -> None:
    at_home = Users(users._cluster)
    told = Told((5.0, 25.0), (5.0, 10.0), False, Reunion(3.0, same_s, 4), counts, at_home, users)

    failed = "requests that failed in all, but those to a service that was killed"
    assert {row.metric for row in rows_of(told) if not row.holds} == broken | {failed}
