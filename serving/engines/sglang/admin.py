"""SGLang's administration over HTTP (sglang 0.5.23, python/sglang/srt/entrypoints/http_server.py). Blocking.

An engine that does not answer in time is unavailable: every call has a deadline.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from core.errors import ConfigError, EngineUnavailable, WeightsError
from serving.engines.sglang.checksums import RankChecksums

SUPPORTED = ("0.5.23",)
SLOWEST_BYTES_S = 100e6
"""At less, whoever loads weights or computes their checksums counts as hung: what a disk that does other work gives."""
_FLUSH_TRIES = 50
_FLUSH_WAIT_S = 0.02
_LIST_S = 2.0


class AdapterRoom(msgspec.Struct, frozen=True):
    """The adapters that a server can load, one that was started with --enable-lora."""

    max_rank: int
    targets: frozenset[str]  # kinds of modules, such as `q_proj`; `all`: any
    max_loaded: int | None = None  # None: no limit


class EngineInfo(msgspec.Struct, frozen=True):
    sglang: str
    dtype: str
    device: str
    context_length: int
    grammars: str  # the library that makes its masks
    is_quantized: bool  # it computes with other bytes than its model's files have
    started: str  # differs from start to start
    adapters: AdapterRoom | None = None  # None: it loads none


class Admin:
    """One server. Every method raises EngineUnavailable when the server is unavailable or hangs."""

    def __init__(self, url: str, admin_key: str | None, timeout_s: float) -> None:
        headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._url, self._timeout_s = url, timeout_s

    def close(self) -> None:
        self._client.close()

    def info(self) -> EngineInfo:
        """Return the server's facts. Raises ConfigError for a version of SGLang that was not checked."""
        found = self._ask("GET", "/server_info")
        version = str(found.get("version"))
        if version not in SUPPORTED:
            raise ConfigError(
                f"{self._url}: SGLang {version} is not supported: install {' or '.join(SUPPORTED)} "
                "(`pip install sglang==VERSION`, or `make sglang-cpu`)"
            )
        return EngineInfo(
            sglang=version,
            dtype=str(found["dtype"]),
            device=str(found["device"]),
            context_length=int(found["max_req_input_len"]),
            grammars=str(found.get("grammar_backend")),
            is_quantized=found.get("quantization") is not None,
            started=json.dumps([found.get("startup_time"), found.get("random_seed")]),
            adapters=_room(found),
        )

    def answers(self) -> bool:
        try:
            return self._client.get("/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def label(self) -> str:
        """Return the version that the engine says it serves: unverified, but cheap to ask for."""
        return str(self._ask("GET", "/model_info", timeout_s=2.0)["weight_version"])

    def generates(self, timeout_s: float) -> bool:
        """Return whether the engine generates a token. It does not while paused."""
        try:
            return self._client.get("/health_generate", timeout=timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    def requests(self) -> int:
        """Return the number of running and waiting requests."""
        loads = self._ask("GET", "/v1/loads?include=core")["loads"]
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in loads)

    def pause(self) -> None:
        """Pause; running requests return to the queue and are prefilled again.

        So no token mixes old and new caches."""
        self._ask("POST", "/pause_generation", {"mode": "retract"})

    def resume(self) -> None:
        self._ask("POST", "/continue_generation", {})

    def load(self, directory: Path, label: str, size: int) -> None:
        """Replace the weights by a directory's of so many bytes, in a session of weight updates.

        Raises WeightsError when it cannot."""
        timeout_s = self._time_for(size)
        self._ask("POST", "/begin_weight_update", {}, timeout_s=timeout_s)
        update = {"model_path": str(directory), "weight_version": label, "flush_cache": True}
        answer = self._ask("POST", "/update_weights_from_disk", update, checked=False, timeout_s=timeout_s)
        self._ask("POST", "/end_weight_update", {}, timeout_s=timeout_s)
        if not answer["success"] and "not flushed" not in str(answer["message"]):
            raise WeightsError(f"{directory}: SGLang did not load it: {answer['message']}")

    def adapters(self) -> dict[str, str]:
        """Return the adapters that the server has loaded: the directory of each, by name."""
        cards = self._ask("GET", "/v1/models", timeout_s=_LIST_S)["data"]
        return {card["id"]: str(card["root"]) for card in cards if card.get("parent") is not None}

    def load_adapter(self, name: str, directory: Path, size: int) -> None:
        """Load an adapter of `size` bytes beside the base. Raises WeightsError when the server refuses it."""
        asked = {"lora_name": name, "lora_path": str(directory)}
        answer = self._ask("POST", "/load_lora_adapter", asked, checked=False, timeout_s=self._time_for(size))
        if not answer.get("success"):
            raise WeightsError(f"{directory}: SGLang did not load it: {answer.get('error_message')}")

    def unload_adapter(self, name: str, timeout_s: float | None = None) -> None:
        """Unload an adapter once its running answers are over. Raises WeightsError when there is none of that name."""
        answer = self._ask("POST", "/unload_lora_adapter", {"lora_name": name}, checked=False, timeout_s=timeout_s)
        if not answer.get("success"):
            raise WeightsError(f"SGLang did not unload {name}: {answer.get('error_message')}")

    def flush(self) -> None:
        """Empty the prefix cache: no prefix outlives its version. Raises WeightsError when it stays full.

        The server's own `timeout` is not used: it waits until no request waits, which never happens during a swap."""
        for _ in range(_FLUSH_TRIES):
            try:
                answer = self._client.post("/flush_cache")
            except httpx.HTTPError as error:
                raise EngineUnavailable(f"{self._url}/flush_cache: {error!r}") from error
            if answer.status_code == 200:
                return
            time.sleep(_FLUSH_WAIT_S)
        raise WeightsError(f"{self._url}: the prefix cache was not flushed")

    def checksums(self, size: int) -> list[RankChecksums]:
        """Return what each rank says of every tensor that it has loaded, in their order; also while paused.

        `size`: bytes of all tensors. None of them says anything where the engine has no checksums to give."""
        asked = {"action": "checksum"}
        answer = self._ask("POST", "/weights_checker", asked, checked=False, timeout_s=self._time_for(size))
        ranks = (answer.get("ranks") or []) if answer.get("success") else []
        return sorted((_said(rank, len(ranks)) for rank in ranks), key=lambda rank: rank.place)

    def score(self, texts: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        """Return log-probabilities at temperature 1 of each text's tokens but the first, computed with `adapter`.

        Texts are scored one after the other: together they are one long prefill, during which every stream stops
        (decision 9)."""
        return [self._score(text, adapter) for text in texts]

    def _score(self, text: Sequence[int], adapter: str | None) -> list[float]:
        asked = {
            "input_ids": list(text),
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "lora_path": adapter,
        }
        answer = self._ask("POST", "/generate", asked)
        return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]

    def _time_for(self, size: int) -> float:
        """Return how long so many bytes may take, and no less than any other step."""
        return max(self._timeout_s, size / SLOWEST_BYTES_S)

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        checked: bool = True,
        timeout_s: float | None = None,
    ) -> Any:
        """Return the JSON answer. A refusal raises WeightsError, unless the caller reads `success` itself."""
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            answer = self._client.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"{self._url}{path}: {error!r}") from error
        if answer.status_code in (401, 403):
            raise ConfigError(f"{self._url}{path}: refused; is serving.sglang.admin_key the server's --admin-api-key?")
        if checked and answer.status_code != 200:
            raise WeightsError(f"{self._url}{path}: {answer.status_code} {answer.text[:500]}")
        try:
            return answer.json()
        except ValueError as error:
            raise EngineUnavailable(f"{self._url}{path}: {answer.status_code} {answer.text[:500]}") from error


def _room(found: Mapping[str, Any]) -> AdapterRoom | None:
    if not found.get("enable_lora") or not found.get("max_lora_rank"):
        return None
    most = found.get("max_loaded_loras")
    targets = frozenset(found.get("lora_target_modules") or ())
    return AdapterRoom(int(found["max_lora_rank"]), targets, None if most is None else int(most))


def _said(rank: Mapping[str, Any], ranks: int) -> RankChecksums:
    """Read a rank's answer; one that does not say how many share its tensors shares them with all others."""
    told = (rank.get("parallelism_info") or [{}])[0]  # the model's own; a draft's comes after it
    place = tuple(int(told.get(part, 0)) for part in ("dp_rank", "pp_rank", "tp_rank"))
    return RankChecksums(dict(rank["checksums"]), int(told.get("tp_size", ranks)), place)
