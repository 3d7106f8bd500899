"""A host whose blobs are out of reach: what its cache has is opened, and nothing else."""

import errno
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from core.blobs import FsspecBlobs
from core.errors import BlobsUnavailable
from core.ids import base_ref
from core.ports import AdapterConfig, WeightsRef
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from serving.releases import ensure_anchor
from serving.weights.published import BlobWeights


class Line(FsspecBlobs):
    """Blobs that are in memory, as remote ones are, behind a line that can be cut."""

    def __init__(self) -> None:
        super().__init__(f"memory://{uuid.uuid4().hex}")
        self.is_cut = False
        self.read = list[str]()

    def get(self, path: str) -> bytes:
        self._reach(path)
        return super().get(path)

    def local(self, path: str, target: Path | None = None) -> Path:
        self._reach(path)
        return super().local(path, target)

    def exists(self, path: str) -> bool:
        self._reach(path)
        return super().exists(path)

    def _reach(self, path: str) -> None:
        if self.is_cut:
            raise OSError(f"{path}: nothing answers")
        self.read.append(path)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def publish(line: Line, tmp_path: Path) -> Callable[..., WeightsRef]:
    def made(number: int, adapter: AdapterConfig | None = None) -> WeightsRef:
        return BlobWeights(line, tmp_path / "home").publish(base_ref(number), shards(number), None, adapter)

    def shards(number: int) -> Sequence[Path]:
        path = tmp_path / "made" / str(number) / "model.safetensors"
        path.parent.mkdir(parents=True)
        draw = np.random.default_rng(number)
        pair = {"up.lora_A.weight": (2, 8), "up.lora_B.weight": (4, 2)}
        save_file({name: draw.normal(size=shape).astype(np.float32) for name, shape in pair.items()}, path)
        return [path]

    return made


@pytest.mark.parametrize("is_adapter", [False, True])
def test_what_was_opened_before_opens_again_in_another_process(
    line: Line, publish: Callable[..., WeightsRef], tmp_path: Path, is_adapter: bool
) -> None:
    adapter = AdapterConfig(base_digest="a" * 64, rank=2, alpha=4.0) if is_adapter else None
    ref = publish(1, adapter)
    before = BlobWeights(line, tmp_path / "edge").open(ref)
    line.is_cut = True
    assert BlobWeights(line, tmp_path / "edge").open(ref) == before
    assert before.adapter == adapter
    assert [path.name for path in before.shards] == ["model.safetensors"]


def test_what_is_not_there_or_damaged_says_what_cannot_be_reached(
    line: Line, publish: Callable[..., WeightsRef], tmp_path: Path
) -> None:
    first, second = publish(1), publish(2)
    (shard,) = BlobWeights(line, tmp_path / "edge").open(first).shards
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    line.is_cut = True
    for ref in (first, second):
        with pytest.raises(OSError, match=f"{ref.path}: nothing answers"):
            BlobWeights(line, tmp_path / "edge").open(ref)


def test_the_given_model_is_at_hand_and_not_fetched(
    line: Line, publish: Callable[..., WeightsRef], tmp_path: Path
) -> None:
    given, other = publish(1), publish(2)
    model = [tmp_path / "made" / "1" / "model.safetensors"]
    edge = BlobWeights(line, tmp_path / "edge")
    edge.keep(other, model)  # which it is not
    edge.keep(given, model)
    line.is_cut = True
    again = BlobWeights(line, tmp_path / "edge")
    assert again.open(given).digest == given.digest
    with pytest.raises(OSError, match="nothing answers"):
        again.open(other)


def test_a_start_keeps_the_given_model_for_the_next_one(line: Line, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"w": np.arange(6, dtype=np.float32)}, model / "model.safetensors")
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    with closing(log), closing(open_sqlite(tmp_path / "store.db")) as store:
        home = BlobWeights(line, tmp_path / "home")
        given = ensure_anchor(store, log, home, line, model, "tiny", "local", None)
        here = BlobWeights(line, tmp_path / "here")
        assert ensure_anchor(store, log, here, line, model, "tiny", "local", None) == given
        line.is_cut = True
        assert here.open(given).digest == given.digest
        with pytest.raises(BlobsUnavailable, match="nothing answers"):
            ensure_anchor(store, log, here, line, model, "tiny", "local", lambda _: pytest.fail("is asked first"))


def test_a_start_goes_on_where_the_given_model_cannot_be_kept(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"w": np.arange(6, dtype=np.float32)}, model / "model.safetensors")
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(log), closing(open_sqlite(tmp_path / "store.db")) as store:
        home = BlobWeights(line, tmp_path / "home")
        monkeypatch.setattr(home, "keep", full)
        assert ensure_anchor(store, log, home, line, model, "tiny", "local", None).version == base_ref(1)
    assert "No space left" in caplog.text


def test_an_adapter_that_a_former_build_kept_is_left_alone(
    line: Line, publish: Callable[..., WeightsRef], tmp_path: Path
) -> None:
    """It does not say that it is one; once that can be read again, it is written down."""
    ref = publish(1, AdapterConfig(base_digest="a" * 64, rank=2, alpha=4.0))
    before = BlobWeights(line, tmp_path / "edge").open(ref)
    note = before.shards[0].parent / "adapter.json"
    note.unlink()
    line.is_cut = True
    with pytest.raises(OSError, match="nothing answers"):
        BlobWeights(line, tmp_path / "edge").open(ref)
    assert before.shards[0].exists()
    line.is_cut = False
    BlobWeights(line, tmp_path / "edge").open(ref)
    line.is_cut = True
    assert BlobWeights(line, tmp_path / "edge").open(ref) == before
