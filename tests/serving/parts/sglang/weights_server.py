"""What a host asks of an SGLang server in a swap, answered as one on GPUs does, and wrongly where a test says so."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from core.ids import base_ref
from core.model.probes import get_probe
from core.ports import Blobs
from serving.engines.sglang.cuda_hash import cuda_hash

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_BY_COLUMN = ("o_proj", "down_proj")


class WeightsServer(ThreadingHTTPServer):
    """Each rank holds a part of every matrix, as with tensor parallelism.

    Its answers to a probe are those of its label: what is wrong with its weights, checksums alone can tell."""

    def __init__(self, blobs: Blobs, ranks: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs, self.label = blobs, "default"
        self.device, self.quantization, self.startup_time = "cuda", None, 1.0
        self.gives_checksums = True
        self.loaded: list[Path] = [Path()] * ranks
        self.swallowing: set[int] = set()  # ranks that say they load, and keep what they have
        self.rotten: dict[int, str] = {}  # of a rank: part of a name, of the tensors that it holds wrongly

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        match path:
            case "/server_info":
                told = {"version": "0.5.23", "dtype": "float32", "device": self.device, "max_req_input_len": 512}
                told["grammar_backend"] = "llguidance"
                return told | {"quantization": self.quantization, "startup_time": {"load_weight": self.startup_time}}
            case "/model_info":
                return {"weight_version": self.label}
            case "/update_weights_from_disk":
                self.label = body["weight_version"]
                for rank in range(len(self.loaded)):
                    if rank not in self.swallowing:
                        self.loaded[rank] = Path(body["model_path"])
                return {"success": True, "message": ""}
            case "/weights_checker" if self.gives_checksums:
                return {"success": True, "ranks": [self.of_rank(rank) for rank in reversed(range(len(self.loaded)))]}
            case "/weights_checker":
                return {"success": False, "message": "no such action"}
            case "/generate":
                record = get_probe(self.blobs, base_ref(int(self.label)))
                place = [list(ids) for ids in record.token_ids].index(body["input_ids"])
                logprobs = [[value] for value in record.logprobs[place]]
                return {"meta_info": {"input_token_logprobs": [[None], *logprobs]}}
        return {}

    def of_rank(self, rank: int) -> dict[str, Any]:
        place = {"role": "target", "tp_rank": rank, "tp_size": len(self.loaded), "dp_rank": 0, "pp_rank": 0}
        return {"checksums": self._checksums(rank), "parallelism_info": [place]}

    def _checksums(self, rank: int) -> dict[str, str]:
        tensors: dict[str, torch.Tensor] = {}
        for shard in sorted(self.loaded[rank].glob("*.safetensors")):
            tensors |= {name: self._part(name, value.float(), rank) for name, value in load_file(shard).items()}
        for fused, parts in _FUSED.items():
            for first in [name for name in tensors if f".{parts[0]}." in name]:
                whole = torch.cat([tensors.pop(first.replace(parts[0], part)) for part in parts])
                tensors[first.replace(parts[0], fused)] = whole
        for name in tensors:
            if rank in self.rotten and self.rotten[rank] in name:
                tensors[name].view(-1)[-1] += 1
        return {name: cuda_hash([memoryview(value.numpy().tobytes())]) for name, value in tensors.items()}

    def _part(self, name: str, value: torch.Tensor, rank: int) -> torch.Tensor:
        if value.ndim == 1:
            return value.clone()
        dim = 1 if any(part in name for part in _BY_COLUMN) else 0
        return value.chunk(len(self.loaded), dim)[rank].contiguous()


class _Handler(BaseHTTPRequestHandler):
    server: WeightsServer

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


@contextmanager
def weights_server(blobs: Blobs, ranks: int = 1) -> Iterator[WeightsServer]:
    with WeightsServer(blobs, ranks) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()
