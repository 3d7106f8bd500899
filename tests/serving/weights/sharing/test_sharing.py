"""Hosts that give each other the weights that one of them read from remote blobs."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from core.blobs import FsspecBlobs
from core.errors import WeightsError
from core.ids import base_ref
from core.model.weights_digest import checksum_of
from core.ports import WeightsRef
from serving.weights.published import BlobWeights
from serving.weights.sharing.kept_files import KeptFiles
from serving.weights.sharing.peers import Peer, Peers
from serving.weights.sharing.server import WeightsServer, path_of

ONE, TWO = base_ref(1), base_ref(2)
ADDRESS = "127.0.0.1"


class CountedBlobs(FsspecBlobs):
    """Remote blobs that count what is read of them, and may hold reads up."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.read: list[str] = []
        self.may_read = threading.Event()
        self.may_read.set()
        self.begun = threading.Event()
        self._alone = threading.Lock()

    def local(self, path: str, target: Path | None = None) -> Path:
        self.read.append(path)
        self.begun.set()
        assert self.may_read.wait(120)
        with self._alone:  # readers of one file in memory share its position
            return super().local(path, target)


@dataclass
class Fleet:
    directory: Path
    stack: ExitStack
    blobs: CountedBlobs = field(default_factory=lambda: CountedBlobs(f"memory://{uuid.uuid4().hex}"))
    peers: list[Peer] = field(default_factory=list)

    def host(self, name: str) -> BlobWeights:
        """Add a host, which gives what it has to the others."""
        kept = KeptFiles(self.directory / name / "files", 2)
        server = self.stack.enter_context(closing(WeightsServer(kept, ADDRESS, 0)))
        self.peers.append(Peer(name, f"http://{ADDRESS}:{server.port}"))
        others = Peers(name, kept, lambda: [peer for peer in self.peers if peer.name != name])
        return BlobWeights(self.blobs, self.directory / name / "weights", peers=others)

    def publish(self, version: int, seed: int) -> WeightsRef:
        file = self.directory / f"{version}.safetensors"
        save_file({"a": np.random.default_rng(seed).normal(size=4096).astype(np.float32)}, file)
        publisher = BlobWeights(self.blobs, self.directory / "publisher")
        return publisher.publish(base_ref(version), [file], None)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def test_of_many_hosts_that_begin_together_one_reads_the_blobs(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = fleet.publish(1, seed=1)
    hosts = [fleet.host(f"host-{number}") for number in range(6)]
    fetching, together = KeptFiles.fetching, threading.Barrier(len(hosts), timeout=120)

    @contextmanager
    def begin_together(self: KeptFiles, checksum: str, who: str) -> Iterator[None]:
        with fetching(self, checksum, who):
            together.wait()  # a host that began after others had asked round would be none of these
            yield

    monkeypatch.setattr(KeptFiles, "fetching", begin_together)
    fleet.blobs.may_read.clear()
    with ThreadPoolExecutor(len(hosts)) as pool:
        opening = [pool.submit(host.open, ref) for host in hosts]
        assert fleet.blobs.begun.wait(120)
        fleet.blobs.may_read.set()
        opened = [each.result(120) for each in opening]
    assert {checksum_of(each.shards[0]) for each in opened} == {checksum_of(fleet.directory / "1.safetensors")}
    assert len(fleet.blobs.read) == 1


def test_a_host_that_comes_later_reads_no_blob_of_what_another_has(fleet: Fleet) -> None:
    ref = fleet.publish(1, seed=1)
    fleet.host("one").open(ref)
    fleet.blobs.read.clear()
    late = fleet.host("two").open(ref)
    assert fleet.blobs.read == []
    assert load_file(late.shards[0])["a"].shape == (4096,)
    fleet.peers.pop(0)
    fleet.host("three").open(ref)
    assert fleet.blobs.read == [], "who was given a file gives it on"


def test_deltas_are_given_too(fleet: Fleet) -> None:
    first = fleet.publish(1, seed=1)
    file = fleet.directory / "1.safetensors"
    changed = load_file(file)
    changed["a"][:8] += 1
    save_file(changed, fleet.directory / "2.safetensors")
    publisher = BlobWeights(fleet.blobs, fleet.directory / "publisher")
    second = publisher.publish(TWO, [fleet.directory / "2.safetensors"], ONE)
    one, two = fleet.host("one"), fleet.host("two")
    for ref in (first, second):
        one.open(ref)
    fleet.blobs.read.clear()
    assert checksum_of(two.open(second).shards[0]) == checksum_of(fleet.directory / "2.safetensors")
    assert fleet.blobs.read == []


def test_a_file_that_another_host_spoilt_is_read_from_the_blobs(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    ref = fleet.publish(1, seed=1)
    fleet.host("one").open(ref)
    (kept,) = (fleet.directory / "one" / "files").glob("*/*")
    whole = kept.read_bytes()
    kept.unlink()
    kept.write_bytes(whole[:-1] + b"?")
    fleet.blobs.read.clear()
    opened = fleet.host("two").open(ref)
    assert checksum_of(opened.shards[0]) == kept.name
    assert len(fleet.blobs.read) == 1
    assert "gave another file" in caplog.text


@pytest.mark.parametrize("sent", [0, 100])
def test_a_host_that_dies_while_it_gives_is_done_without(fleet: Fleet, sent: int) -> None:
    class Dies(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "9999")
            self.end_headers()
            self.wfile.write(b"x" * sent)

        def log_message(self, format: str, *args: object) -> None: ...

    ref = fleet.publish(1, seed=1)
    server = ThreadingHTTPServer((ADDRESS, 0), Dies)
    fleet.stack.callback(server.server_close)
    fleet.stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    fleet.peers.append(Peer("dies", f"http://{ADDRESS}:{server.server_port}"))
    opened = fleet.host("one").open(ref)
    assert checksum_of(opened.shards[0]) == checksum_of(fleet.directory / "1.safetensors")
    assert len(fleet.blobs.read) == 1


def test_a_host_that_cannot_be_reached_is_done_without(fleet: Fleet) -> None:
    ref = fleet.publish(1, seed=1)
    fleet.host("gone")
    fleet.stack.close()
    fleet.host("one").open(ref)
    assert len(fleet.blobs.read) == 1


def test_nobody_waits_for_a_host_whose_name_comes_later(fleet: Fleet) -> None:
    ref = fleet.publish(1, seed=1)
    first, last = fleet.host("a"), fleet.host("b")
    fleet.blobs.may_read.clear()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(last.open, ref)
        assert fleet.blobs.begun.wait(120)
        quick = pool.submit(first.open, ref)
        until(lambda: len(fleet.blobs.read) == 2)
        fleet.blobs.may_read.set()
        assert slow.result(120).digest == quick.result(120).digest


def test_a_file_that_is_no_longer_kept_is_not_served(fleet: Fleet) -> None:
    refs = [fleet.publish(number, seed=number) for number in (1, 2, 3)]
    host = fleet.host("one")
    for ref in refs:
        host.open(ref)
    found = [_status(fleet, number) for number in (1, 2, 3)]
    assert found == [404, 200, 200]


def _status(fleet: Fleet, version: int) -> int:
    checksum = checksum_of(fleet.directory / f"{version}.safetensors")
    return httpx.get(fleet.peers[0].url + path_of(checksum), timeout=120).status_code


def test_who_asks_as_a_fetch_ends_is_given_the_file(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks of a host's server its fetch may end: what it had not before, it has then."""
    ref = fleet.publish(1, seed=1)
    host, checksum = fleet.host("one"), checksum_of(fleet.directory / "1.safetensors")
    with ThreadPoolExecutor(1) as pool:
        fleet.blobs.may_read.clear()
        opening = pool.submit(host.open, ref)
        assert fleet.blobs.begun.wait(120)

        def ends_after(look: Callable[[KeptFiles, str], object]) -> Callable[[KeptFiles, str], object]:
            def looks(self: KeptFiles, asked: str) -> object:
                found = look(self, asked)
                fleet.blobs.may_read.set()
                opening.result(120)
                return found

            return looks

        for name in ("find", "fetcher"):
            monkeypatch.setattr(KeptFiles, name, ends_after(getattr(KeptFiles, name)))
        assert httpx.get(fleet.peers[0].url + path_of(checksum), timeout=120).status_code == 200


@pytest.mark.parametrize("path", ["/", "/weights/", "/weights/..%2f..%2fetc", "/weights/" + "A" * 64, "/metrics"])
def test_nothing_but_kept_files_is_served(fleet: Fleet, path: str) -> None:
    fleet.host("one")
    assert httpx.get(fleet.peers[0].url + path, timeout=120).status_code == 404


def test_a_damaged_file_in_a_hosts_own_store_is_fetched_again(fleet: Fleet) -> None:
    ref = fleet.publish(1, seed=1)
    host = fleet.host("one")
    host.open(ref)
    for folder in ("files", "weights"):
        for file in (fleet.directory / "one" / folder).glob("*/*"):
            file.unlink()
            file.write_bytes(b"rot")
    fresh = BlobWeights(fleet.blobs, fleet.directory / "one" / "weights", peers=host._peers)
    assert checksum_of(fresh.open(ref).shards[0]) == checksum_of(fleet.directory / "1.safetensors")


def test_a_blob_that_is_gone_is_named(fleet: Fleet) -> None:
    ref = fleet.publish(1, seed=1)
    host = fleet.host("one")
    fleet.blobs.delete("weights/00000001/1.safetensors")
    with pytest.raises(WeightsError, match=r"weights/00000001/1\.safetensors: missing"):
        host.open(ref)
    assert not list((fleet.directory / "one" / "files").glob("*/*"))


def until(is_so: Callable[[], bool]) -> None:
    waiting = threading.Event()
    while not is_so():
        waiting.wait(0.01)
