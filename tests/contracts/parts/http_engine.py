"""An adapter of a remote engine that is not SGLang: the host's side and the data path to a `TokenServer`."""

import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec

from core.errors import Conflict, EngineUnavailable, InvalidRequest, WeightsError
from core.ids import PolicyRef
from core.model.probes import figures, get_probe
from core.model.weights_digest import digest_of_shards, tensors_of
from core.operations.fleet import NamedVersion
from core.ports import Blobs, GenerateRequest, TokenChunk, Weights, WeightsRef
from serving.weights.deltas.finite import check_finite


class HttpEngine:
    """Implements core.ports.Engine: verifies the weights here, and believes the server by the digest that it tells."""

    holds_many = False

    def __init__(self, name: str, url: str, weights: Weights, blobs: Blobs, model: Path) -> None:
        self.name, self.url = name, url
        self._weights, self._blobs = weights, blobs
        self._layout = {name: tensor.shape for name, tensor in tensors_of(sorted(model.glob("*.safetensors"))).items()}
        self._held: dict[PolicyRef, WeightsRef] = {}
        self._http = httpx.Client(base_url=url)

    def serving(self) -> PolicyRef | None:
        try:
            told = self._ask("GET", "/v1/models")["data"][0]
        except EngineUnavailable:
            return None
        version = PolicyRef.parse(told["id"]) if told["id"] else None
        return version if version in self._held and self._held[version].digest == told["digest"] else None

    def pinnable(self) -> frozenset[PolicyRef]:
        serving = self.serving()
        return frozenset() if serving is None else frozenset({serving})

    def names(self) -> Mapping[PolicyRef, str]:
        return {}

    def loaded(self) -> Mapping[PolicyRef, str]:
        return {version: ref.digest for version, ref in self._held.items()}

    def load(self, ref: WeightsRef) -> None:
        shards = self._weights.open(ref).shards
        found = {name: tensor.shape for name, tensor in tensors_of(shards).items()}
        strange = sorted(name for name in found.keys() | self._layout if found.get(name) != self._layout.get(name))
        if strange:
            raise WeightsError(f"{ref.path}: {', '.join(strange)}: not as the model has it")
        check_finite(shards)
        if digest_of_shards(shards) != ref.digest:
            raise WeightsError(f"{ref.path}: of another digest than version {ref.version}")
        self._held[ref.version] = ref

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        own = get_probe(self._blobs, version, self._held[version].digest)
        return figures(own, get_probe(self._blobs, self.serving() or version))

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        told = self._ask("GET", "/v1/models")["data"][0]
        is_other = told["id"] == str(version) and told["digest"] != self._held[version].digest
        return "the server holds other weights" if is_other else None

    def switch(self, version: PolicyRef) -> None:
        self._ask("POST", "/weights", {"version": str(version), "digest": self._held[version].digest})
        if self.serving() != version:
            raise WeightsError(f"{self.url} does not serve version {version}")

    def unload(self, version: PolicyRef) -> None:
        if version == self.serving():
            raise Conflict(f"version {version} serves", param="version")
        del self._held[version]

    def is_idle(self) -> bool:
        return True

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        try:
            return self._http.request(method, path, json=body).raise_for_status().json()
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"{self.url}: {error}") from error


class HttpEngines:
    """Implements serving.fleet.remote.RemoteEngines."""

    dtype = "float32"

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def generation(self, url: str, request: GenerateRequest, named: NamedVersion | None = None) -> "HttpGeneration":
        self._session = self._session or aiohttp.ClientSession()
        return HttpGeneration(self._session, url, request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class HttpGeneration:
    """Implements serving.fleet.remote.RemoteGeneration."""

    def __init__(self, session: aiohttp.ClientSession, url: str, request: GenerateRequest) -> None:
        self._session, self._url, self._request = session, url, request
        self._response: aiohttp.ClientResponse | None = None
        self.heard_s = time.monotonic()

    def give_up(self) -> None:
        if self._response is not None:
            self._response.close()

    async def stream(self) -> AsyncGenerator[TokenChunk, None]:
        try:
            async with self._session.post(f"{self._url}/v1/completions", json=self._body()) as response:
                self._response = response
                if response.status == 400:
                    raise InvalidRequest(await response.text())
                response.raise_for_status()
                async for line in response.content:
                    self.heard_s = time.monotonic()
                    if line.startswith(b"data: {"):
                        yield _chunk(msgspec.json.decode(line.removeprefix(b"data: ")))
                    elif line.startswith(b"data: [DONE]"):
                        return
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineUnavailable(f"{self._url}: {error}") from error
        raise EngineUnavailable(f"{self._url}: the answer has no end")

    def _body(self) -> dict[str, Any]:
        sampling = self._request.sampling
        return {
            "prompt": self._request.prompt_token_ids,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "stop_token_ids": self._request.stop_token_ids,
            "logprobs": self._request.top_logprobs,
            "stream": True,
        }


def _chunk(event: dict[str, Any]) -> TokenChunk:
    choice = event["choices"][0]
    return TokenChunk(
        token_ids=tuple(choice["token_ids"]),
        logprobs=tuple(choice["logprobs"]["token_logprobs"]),
        top_logprobs=tuple(tuple(map(tuple, top)) for top in choice["logprobs"]["top_logprobs"]),
        version=PolicyRef.parse(event["model"]),
        finish_reason=choice["finish_reason"],
        cached_tokens=event.get("cached_tokens"),
    )
