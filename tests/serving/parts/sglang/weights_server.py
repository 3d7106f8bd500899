"""What a host asks of an SGLang server in a swap, answered as one on GPUs does, and wrongly where a test says so."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from core.ids import PolicyRef, base_ref
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
        self.most_adapters: int | None = None  # that it takes beside its weights; None: it was started without LoRA
        self.targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.adapters: dict[str, str] = {}  # the directories, by name
        self.answers_as: dict[str, PolicyRef] = {}  # of an adapter: whose answers it gives instead of its own
        self.running = 0
        self.asked: list[str] = []  # paths

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(path)
        match path:
            case "/v1/models":
                base = [{"id": "model", "root": "model", "parent": None}]
                cards = [{"id": name, "root": root, "parent": "model"} for name, root in self.adapters.items()]
                return {"data": base + cards}
            case "/load_lora_adapter":
                return self._load_adapter(body["lora_name"], Path(body["lora_path"]))
            case "/unload_lora_adapter":
                return {"success": self.adapters.pop(body["lora_name"], None) is not None, "error_message": "none"}
            case "/v1/loads?include=core":
                return {"loads": [{"num_running_reqs": self.running, "num_waiting_reqs": 0}]}
            case "/server_info":
                told = {"version": "0.5.23", "dtype": "float32", "device": self.device, "max_req_input_len": 512}
                told["grammar_backend"] = "llguidance"
                if self.most_adapters is not None:
                    told |= {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": self.targets}
                    told |= {"max_loaded_loras": self.most_adapters}
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
                name = body["lora_path"]
                version = base_ref(int(self.label if name is None else name.split("-")[1]))
                record = get_probe(self.blobs, self.answers_as.get(name, version))
                place = [list(ids) for ids in record.token_ids].index(body["input_ids"])
                logprobs = [[value] for value in record.logprobs[place]]
                return {"meta_info": {"input_token_logprobs": [[None], *logprobs]}}
        return {}

    def _load_adapter(self, name: str, directory: Path) -> dict[str, Any]:
        """Load as SGLang does: the one that came first goes where there are too many, whoever loaded it."""
        try:
            if name in self.adapters:
                raise ValueError(f"{name} is already loaded")
            json.loads((directory / "adapter_config.json").read_text())
            load_file(directory / "adapter_model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            return {"success": False, "error_message": str(error)}
        self.adapters[name] = str(directory)
        while len(self.adapters) > (self.most_adapters or 0):
            del self.adapters[next(iter(self.adapters))]
        return {"success": True}

    def restart(self, label: str) -> None:
        self.startup_time += 1
        self.label = label
        self.adapters.clear()

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
