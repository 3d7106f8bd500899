"""What an SGLang server on GPUs has loaded is held to the files, and to what its ranks said before."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from engine_world import MODEL, Published
from safetensors.torch import save_file
from weights_server import WeightsServer, weights_server

from core.errors import ConfigError, WeightsError
from core.ids import ANCHOR, base_ref
from core.model.files import weight_files
from core.model.probes import ProbeComparison
from core.model.weights_digest import bytes_of, tensors_of
from core.settings import SglangSettings
from serving.engines.sglang.checksums import RankChecksums, computable, expected
from serving.engines.sglang.cuda_hash import cuda_hash
from serving.engines.sglang.engine import SglangEngine
from serving.engines.sglang.proof import Proof, proof_of

TWO, THREE = base_ref(2), base_ref(3)


@pytest.mark.parametrize(
    ("size", "hashed"),
    [
        (0, "0000000000000000"),
        (1, "3d93a6540b54ef2a"),
        (1000, "5a9758546917fef4"),
        (32774, "5f39ba38185e8de8"),
        (98306, "2e233505060fc061"),
        (524293, "cd50beae6e4017e6"),
    ],
)
def test_the_hash_is_sglangs(size: int, hashed: str) -> None:
    """The expected ones were made by SGLang 0.5.23's own kernel, in Triton's interpreter."""
    data = memoryview(bytes(place * 7 % 251 for place in range(size)))
    for cut in (0, 1, size // 3, size - 2):
        assert cuda_hash([data[:cut], data[cut:]] if cut > 0 else [data]) == hashed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(tmp_path_factory.mktemp("gpu"))
    made.publish(2)
    made.publish_adapter(3)
    return made


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def server(world: Published, request: pytest.FixtureRequest) -> Iterator[WeightsServer]:
    with weights_server(world.blobs, request.param) as made:
        yield made


@pytest.fixture
def engine(world: Published, server: WeightsServer, tmp_path: Path) -> Iterator[SglangEngine]:
    settings = SglangSettings(device="cuda")
    with closing(SglangEngine("one", settings, world.weights, world.blobs, MODEL, tmp_path, url=server.url)) as made:
        for version in (ANCHOR, TWO, THREE):
            made.load(world.refs[version])
        yield made


def proof(server: WeightsServer) -> Proof:
    ranks = [RankChecksums(each["checksums"], len(server.loaded), (n,)) for n, each in enumerate(told(server))]
    return proof_of(ranks, computable(weight_files(MODEL), "float32"), is_quantized=server.quantization is not None)


def told(server: WeightsServer) -> list[dict[str, Any]]:
    return [server.of_rank(rank) for rank in range(len(server.loaded))]


def test_it_serves_the_model_it_is_given_and_versions_after_it(engine: SglangEngine, server: WeightsServer) -> None:
    for version in (ANCHOR, TWO, THREE, ANCHOR):
        engine.switch(version)
        assert engine.serving() == version
    found = proof(server)
    assert (found.ranks, found.tensors) == (len(server.loaded), sum(len(each["checksums"]) for each in told(server)))
    whole = sum(
        name.endswith(("layernorm.weight", "model.norm.weight")) for each in told(server) for name in each["checksums"]
    )
    assert found.computed == (found.tensors if found.ranks == 1 else whole) > 0


def test_what_differs_from_the_files_is_found_at_the_first_load(engine: SglangEngine, server: WeightsServer) -> None:
    last = len(server.loaded) - 1
    server.rotten[last] = "model.norm"
    with pytest.raises(
        WeightsError, match=rf"{who(server, last)} loaded another model\.norm\.weight than is in the file"
    ):
        engine.switch(TWO)
    assert engine.serving() is None


def test_of_the_tensors_some_are_compared_where_others_cannot_be(engine: SglangEngine, server: WeightsServer) -> None:
    """A quantized engine holds its matrices in other bytes than the files have, and its norms as they are."""
    server.quantization = "fp8"
    server.rotten = dict.fromkeys(range(len(server.loaded)), "proj")
    engine.switch(TWO)
    assert 0 < proof(server).computed < proof(server).tensors
    server.rotten = {0: "layers.1.input_layernorm"}
    with pytest.raises(WeightsError, match=rf"{who(server, 0)} loaded another model\.layers\.1\.input_layernorm"):
        engine.switch(TWO)


@pytest.fixture
def blurred(server: WeightsServer) -> WeightsServer:
    """Of its matrices nothing can be computed from the files, nor do adapters change anything else."""
    server.quantization = "fp8"
    return server


def test_a_rank_that_lies_is_found_by_what_it_said_before(engine: SglangEngine, blurred: WeightsServer) -> None:
    last = len(blurred.loaded) - 1
    for version in (ANCHOR, TWO):
        engine.switch(version)
    blurred.rotten[last] = "layers.2.mlp.down_proj"
    with pytest.raises(
        WeightsError, match=rf"version 1: {who(blurred, last)} holds another .*\.2\.mlp\.down_proj.* before"
    ):
        engine.switch(ANCHOR)
    blurred.startup_time = 2.0  # started again, maybe with other arguments: what it said before is no reference
    engine.switch(ANCHOR)
    blurred.rotten.clear()
    with pytest.raises(WeightsError, match="holds another"):
        engine.switch(ANCHOR)


def test_a_load_that_was_swallowed_is_found(engine: SglangEngine, blurred: WeightsServer) -> None:
    """It says that it loaded the adapter, its label and its answers are the new ones, and a rank keeps what it had."""
    engine.switch(ANCHOR)
    last = len(blurred.loaded) - 1
    blurred.swallowing.add(last)
    with pytest.raises(WeightsError, match=rf"version 3: {who(blurred, last)} holds version 1: it swallowed the load"):
        engine.switch(THREE)
    assert engine.serving() == ANCHOR, "which it still holds"
    blurred.swallowing.clear()
    engine.switch(THREE)
    assert engine.serving() == THREE


def who(server: WeightsServer, rank: int) -> str:
    return "the engine" if len(server.loaded) == 1 else f"its rank {rank}"


def test_what_was_not_confirmed_is_no_reference(
    engine: SglangEngine, blurred: WeightsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    blurred.rotten[0] = "layers.0.mlp.down_proj"
    with monkeypatch.context() as patch:
        patch.setattr("serving.engines.sglang.engine.agrees", lambda *_: ProbeComparison(False, "far"))
        with pytest.raises(WeightsError, match="far"):
            engine.switch(TWO)
    blurred.rotten.clear()
    engine.switch(TWO)


def test_weights_that_are_the_same_as_served_are_not_taken_for_swallowed(
    world: Published, engine: SglangEngine, server: WeightsServer
) -> None:
    """The digest of a version's files says how they are stored as well."""
    ref = world.publish_tensors(4, {name: value.float() for name, value in world.tensors().items()})
    assert ref.digest != world.refs[ANCHOR].digest
    engine.load(ref)
    for version in (ANCHOR, ref.version):
        engine.switch(version)
        assert engine.serving() == version


def test_without_checksums_the_probe_alone_decides(engine: SglangEngine, server: WeightsServer) -> None:
    server.gives_checksums = False
    engine.switch(TWO)
    assert engine.serving() == TWO
    assert str(proof_of([], {"model.norm.weight"}, is_quantized=False)).startswith("the probe alone")


def test_a_large_version_has_longer_to_be_loaded(
    engine: SglangEngine, server: WeightsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no step has less than the setting says."""
    given: dict[str, Any] = {}
    asked = httpx.Client.request

    def noting(client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
        given[path] = more.get("timeout", httpx.USE_CLIENT_DEFAULT)
        return asked(client, method, path, **more)

    monkeypatch.setattr(httpx.Client, "request", noting)
    size = bytes_of(tensors_of(weight_files(tmp_path / "versions" / "00000002")))
    sized = ("/begin_weight_update", "/update_weights_from_disk", "/end_weight_update", "/weights_checker")
    for slowest, seconds in ((size / 2000, 2000.0), (2.0 * size, SglangSettings().timeouts.admin_s)):
        monkeypatch.setattr("serving.engines.sglang.admin.SLOWEST_BYTES_S", slowest)
        engine.switch(TWO)
        assert [given[path] for path in sized] == [pytest.approx(seconds)] * len(sized)
        assert given["/pause_generation"] is httpx.USE_CLIENT_DEFAULT


def test_versions_that_nobody_serves_leave_the_disk(
    world: Published, engine: SglangEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged one is as large as the model: not half of one stays, nor one of a host that ended."""
    engine.unload(THREE)
    with monkeypatch.context() as patch:
        patch.setattr("serving.weights.merged.shutil.disk_usage", lambda _: SimpleNamespace(free=1_000_000))
        with pytest.raises(OSError, match=r"a merged version takes [\d,]+ bytes, and 1,000,000 are free"):
            engine.load(world.refs[THREE])
    assert THREE not in engine.loaded()
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == ["00000001", "00000002"]
    with closing(SglangEngine("one", SglangSettings(), world.weights, world.blobs, MODEL, tmp_path, url=engine.url)):
        assert list((tmp_path / "versions").iterdir()) == []


def test_settings_that_say_another_device_are_refused(engine: SglangEngine, server: WeightsServer) -> None:
    server.device = "cpu"
    with pytest.raises(ConfigError, match=r"serving\.sglang\.device is cuda, and the server at .* has cpu"):
        engine.switch(ANCHOR)


@pytest.mark.parametrize(("rows", "comparable"), [(128, True), (100, False)])
def test_a_vocabulary_that_the_engine_fills_up_is_not_compared(tmp_path: Path, rows: int, comparable: bool) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"model.embed_tokens.weight": torch.ones(rows, 4), "model.norm.weight": torch.ones(4)}, path)
    for device in ("cpu", "cuda"):
        found = expected([path], "float32", device)
        assert found.checksums.keys() == computable([path], "float32")
        assert ("model.embed_tokens.weight" in found.checksums, "model.norm.weight" in found.checksums) == (
            comparable,
            True,
        )


def test_the_content_is_that_of_all_tensors(tmp_path: Path) -> None:
    contents = set()
    for place, other in enumerate(("nothing", "embed_tokens", "norm")):
        path = tmp_path / f"{place}.safetensors"
        names = ("model.embed_tokens.weight", "model.norm.weight")
        save_file({name: torch.full((100, 4), 2.0 if other in name else 1.0) for name in names}, path)
        contents.add(expected([path], "float32", "cpu").content)
        assert expected([path], "float32", "cpu").is_exact
        assert not expected([path], "bfloat16", "cpu").is_exact
    assert len(contents) == 3
