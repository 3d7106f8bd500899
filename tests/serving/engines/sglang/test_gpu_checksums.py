"""An SGLang server on a GPU gives other checksums of its weights than one on a CPU: it is held to these."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_world import MODEL, Published
from safetensors.torch import load_file, save_file

from core.errors import ConfigError, WeightsError
from core.ids import ANCHOR, base_ref
from core.model.probes import get_probe
from core.settings import SglangSettings
from serving.engines.sglang.checksums import covers, expected
from serving.engines.sglang.cuda_hash import cuda_hash
from serving.engines.sglang.engine import SglangEngine

TWO = base_ref(2)


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


class GpuServer(ThreadingHTTPServer):
    """What a host asks of an SGLang server, answered as one on a GPU does."""

    def __init__(self, world: Published, device: str = "cuda") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.world, self.device = world, device
        self.label, self.loaded = "none", Path()
        self.rots = False

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        match path:
            case "/server_info":
                return {"version": "0.5.23", "dtype": "float32", "device": self.device, "max_req_input_len": 512}
            case "/model_info":
                return {"weight_version": self.label}
            case "/update_weights_from_disk":
                self.label, self.loaded = body["weight_version"], Path(body["model_path"])
                return {"success": True, "message": ""}
            case "/weights_checker":
                return {"success": True, "ranks": [{"checksums": self.checksums()}]}
            case "/generate":
                record = get_probe(self.world.blobs, base_ref(int(self.label)))
                place = [list(ids) for ids in record.token_ids].index(body["input_ids"])
                logprobs = [[value] for value in record.logprobs[place]]
                return {"meta_info": {"input_token_logprobs": [[None], *logprobs]}}
        return {}

    def checksums(self) -> dict[str, str]:
        tensors: dict[str, torch.Tensor] = {}
        for shard in sorted(self.loaded.glob("*.safetensors")):
            tensors |= {name: value.float() for name, value in load_file(shard).items()}
        for fused, parts in {
            "qkv_proj": ("q_proj", "k_proj", "v_proj"),
            "gate_up_proj": ("gate_proj", "up_proj"),
        }.items():
            for first in [name for name in tensors if f".{parts[0]}." in name]:
                whole = torch.cat([tensors.pop(first.replace(parts[0], part)) for part in parts])
                tensors[first.replace(parts[0], fused)] = whole
        if self.rots:
            next(iter(tensors.values())).view(-1)[-1] += 1
        return {name: cuda_hash([memoryview(value.numpy().tobytes())]) for name, value in tensors.items()}


class Handler(BaseHTTPRequestHandler):
    server: GpuServer

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}"))

    def _answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(self.server.answer(self.path, body)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(tmp_path_factory.mktemp("gpu"))
    made.publish(2)
    return made


@pytest.fixture
def server(world: Published) -> Iterator[GpuServer]:
    with GpuServer(world) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def engine(world: Published, server: GpuServer, tmp_path: Path) -> Iterator[SglangEngine]:
    url = f"http://127.0.0.1:{server.server_port}"
    settings = SglangSettings(device="cuda")
    with closing(SglangEngine("one", settings, world.weights, world.blobs, MODEL, tmp_path, url=url)) as made:
        for version in (ANCHOR, TWO):
            made.load(world.refs[version])
        yield made


def test_it_serves_the_model_it_is_given_and_versions_after_it(engine: SglangEngine, server: GpuServer) -> None:
    for version in (ANCHOR, TWO):
        engine.switch(version)
        assert engine.serving() == version
        assert covers(server.checksums(), expected(sorted(server.loaded.glob("*.safetensors")), "float32", "cuda"))


def test_what_it_loaded_wrongly_is_found(engine: SglangEngine, server: GpuServer) -> None:
    engine.switch(ANCHOR)
    server.rots = True
    with pytest.raises(WeightsError, match="loaded another"):
        engine.switch(TWO)
    assert engine.serving() is None


def test_settings_that_say_another_device_are_refused(engine: SglangEngine, server: GpuServer) -> None:
    server.device = "cpu"
    with pytest.raises(ConfigError, match=r"serving\.sglang\.device is cuda, and the server at .* has cpu"):
        engine.switch(ANCHOR)


@pytest.mark.parametrize(("rows", "comparable"), [(128, True), (100, False)])
def test_a_vocabulary_that_the_engine_fills_up_is_not_compared(tmp_path: Path, rows: int, comparable: bool) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"model.embed_tokens.weight": torch.ones(rows, 4), "model.norm.weight": torch.ones(4)}, path)
    for device in ("cpu", "cuda"):
        found = expected([path], "float32", device)
        assert ("model.embed_tokens.weight" in found, "model.norm.weight" in found) == (comparable, True)
