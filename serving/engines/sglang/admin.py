"""SGLang's administration over HTTP (sglang 0.5.23, python/sglang/srt/entrypoints/http_server.py). Blocking.

An engine that does not answer in time is unavailable: every call has a deadline.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from core.errors import ConfigError, EngineUnavailable, WeightsError

SUPPORTED = ("0.5.23",)
_FLUSH_TRIES = 50
_FLUSH_WAIT_S = 0.02
_UNLOAD_S = 1.0


class EngineInfo(msgspec.Struct, frozen=True):
    sglang: str
    dtype: str
    context_length: int
    grammars: str  # the library that makes its masks
    told: dict[str, Any]  # all that it says of itself: its arguments, above all


class Admin:
    """One server. Every method raises EngineUnavailable when the server is unavailable or hangs."""

    def __init__(self, url: str, admin_key: str | None, timeout_s: float) -> None:
        headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._url = url

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
            version, str(found["dtype"]), int(found["max_req_input_len"]), str(found.get("grammar_backend")), found
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

    def load(self, directory: Path, label: str) -> None:
        """Replace the weights by a directory's, in a session of weight updates. Raises WeightsError when it cannot."""
        self._must("/begin_weight_update", {})
        update = {"model_path": str(directory), "weight_version": label, "flush_cache": True}
        answer = self._ask("POST", "/update_weights_from_disk", update, checked=False)
        self._must("/end_weight_update", {})
        if not answer["success"] and "not flushed" not in str(answer["message"]):
            raise WeightsError(f"{directory}: SGLang did not load it: {answer['message']}")

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

    def checksums(self) -> dict[str, str] | None:
        """Return the checksum of every loaded tensor, by the engine's own names; also while paused.

        None when it has none, or is spread over several ranks."""
        answer = self._ask("POST", "/weights_checker", {"action": "checksum"}, checked=False)
        ranks = answer.get("ranks") or []
        if not answer.get("success") or len(ranks) != 1:
            return None
        return dict(ranks[0]["checksums"])

    def relabel(self, label: str) -> None:
        """Give the weights that are loaded another label."""
        self._must("/update_weight_version", {"new_version": label, "abort_all_requests": False})

    def adapters(self) -> frozenset[str]:
        """Return the names of the loaded adapters."""
        models = self._ask("GET", "/v1/models", timeout_s=2.0)["data"]
        return frozenset(str(model["id"]) for model in models if model.get("parent") is not None)

    def load_adapter(self, name: str, directory: Path) -> None:
        """Load an adapter beside all others, while requests run.

        Raises WeightsError when it cannot, EngineUnavailable while one of that name is loaded or still drained."""
        answer = self._ask(
            "POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)}, checked=False
        )
        if answer.get("success"):
            return
        why = str(answer.get("error_message") or answer)
        if "already loaded" in why or "incomplete unload" in why:
            raise EngineUnavailable(f"{self._url}/load_lora_adapter: {why}")
        raise WeightsError(f"{directory}: SGLang did not load it: {why}")

    def unload_adapter(self, name: str) -> None:
        """Let no new request use an adapter; the server forgets it once the running ones are done.

        It answers only then, and loads nothing else until then; this waits a moment at most."""
        try:
            self._client.post("/unload_lora_adapter", json={"lora_name": name}, timeout=_UNLOAD_S)
        except httpx.ReadTimeout:
            return
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"{self._url}/unload_lora_adapter: {error!r}") from error

    def score(self, texts: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        """Return log-probabilities at temperature 1 of each text's tokens but the first.

        Texts are scored one after the other: together they are one long prefill, during which every stream stops
        (decision 9)."""
        return [self._score(text, adapter) for text in texts]

    def _score(self, text: Sequence[int], adapter: str | None) -> list[float]:
        asked = {
            **({} if adapter is None else {"lora_path": adapter}),
            "input_ids": list(text),
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        }
        answer = self._ask("POST", "/generate", asked)
        return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]

    def _must(self, path: str, body: dict[str, Any]) -> None:
        self._ask("POST", path, body)

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
