"""Three organisations on one engine: a version published for one speaks to its users alone, as do its faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from service_tree import Service, user, wait_for

from core.events import PolicyVersion
from core.ids import ANCHOR, PolicyName, PolicyRef
from core.ports import AdapterConfig
from onward.wiring.foundation import open_foundation

OWNERS = {"acme": "acme", "globex": "globex", "public": ""}
"""The policy of each namespace."""
TOML = """
[policies.acme]
namespaces = ["acme"]
[policies.globex]
namespaces = ["globex"]
""" + "".join(
    f'[[api.keys]]\nkey = "key-of-{name}"\nnamespace = "{name}"\nscopes = ["chat", "read", "operate"]\n'
    for name in OWNERS
)


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    settings = {
        "learner__enabled": "false",
        "monitors__enabled": "false",
        "serving__versions__min_swap_interval_s": "0",
    }
    made = make_service(**settings)
    (made.directory / "onward.toml").write_text(TOML)
    return made.start()


def publish(directory: Path, policy: str, *, size: float, rank: int = 4) -> PolicyRef:
    """Publish an adapter as a learner of this policy does, with drawn matrices of this size."""
    foundation = open_foundation(directory)
    try:
        with foundation.store.work() as work:
            version = work.policies.allocate(foundation.clock.now(), PolicyName(policy))
            given, parent = work.policies.get(ANCHOR), work.releases.live("local", PolicyName(policy))
        assert given is not None
        draw, tensors = torch.Generator().manual_seed(version.version), {}
        for shard in sorted(foundation.model.glob("*.safetensors")):
            for name, weight in load_file(shard).items():
                if name.endswith("_proj.weight"):
                    outputs, inputs = weight.shape
                    module = name.removesuffix(".weight")
                    tensors[f"{module}.lora_A.weight"] = size * torch.randn(rank, inputs, generator=draw)
                    tensors[f"{module}.lora_B.weight"] = size * torch.randn(outputs, rank, generator=draw)
        path = directory / "made.safetensors"
        save_file(tensors, path)
        adapter = AdapterConfig(base_digest=given.digest, rank=rank, alpha=float(rank))
        ref = foundation.weights.publish(version, [path], parent, adapter)
        made = PolicyVersion(
            version=version,
            policy=policy,
            digest=ref.digest,
            parent=parent,
            manifest=None,
            weights=ref.path,
            created_at=foundation.clock.now(),
        )
        with foundation.store.work() as work:
            work.policies.put(made)
    finally:
        foundation.close()
    return version


def get(service: Service, namespace: str, path: str) -> Any:
    return httpx.get(f"{service.url}{path}", headers={"authorization": f"Bearer key-of-{namespace}"}, timeout=60).json()


def answers(service: Service) -> dict[str, tuple[str, list[float]]]:
    """Return, for each namespace, the version that answers it and how likely it holds its likeliest tokens."""
    said = {}
    for namespace in OWNERS:
        body = {"model": "onward-tiny", "messages": [user("write total(xs): sum of xs")], "temperature": 0}
        body |= {"max_tokens": 12, "logprobs": True}
        headers = {"authorization": f"Bearer key-of-{namespace}"}
        answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        said[namespace] = (
            answer.headers["x-onward-policy-version"],
            [round(token["logprob"], 3) for token in answer.json()["choices"][0]["logprobs"]["content"]],
        )
    return said


def order(service: Service, namespace: str, version: str, kind: str) -> int:
    headers = {"authorization": f"Bearer key-of-{namespace}"}
    answer = httpx.post(
        f"{service.url}/v1/policies/{version}/{kind}", json={"why": "a test"}, headers=headers, timeout=60
    )
    return answer.status_code


def state_of(service: Service, namespace: str, version: PolicyRef) -> str:
    listed = get(service, namespace, "/v1/policies")["data"]
    return next((each["state"] for each in listed if each["version"] == str(version)), "unknown")


def test_versions_of_one_organisation_are_loaded_gated_and_served_to_it_alone(service: Service) -> None:
    first = answers(service)
    assert {name: version for name, (version, _) in first.items()} == {
        "acme": "acme@1",
        "globex": "globex@1",
        "public": "1",
    }
    assert len({tuple(words) for _, words in first.values()}) == 1, "all begin with the given model"
    made = publish(service.directory, "acme", size=0.1)
    wait_for(lambda: get(service, "acme", "/v1/policies")["live"] == str(made), 60, "acme's version to serve")
    second = answers(service)
    assert second["acme"][0] == "acme@2"
    assert second["acme"][1] != first["acme"][1], "it says other things"
    assert {name: second[name] for name in ("globex", "public")} == {name: first[name] for name in ("globex", "public")}
    broken = publish(service.directory, "acme", size=float("nan"))
    wait_for(lambda: state_of(service, "acme", broken) == "rejected", 60, "the broken version to be refused")
    theirs = publish(service.directory, "globex", size=0.1)
    wait_for(lambda: get(service, "globex", "/v1/policies")["live"] == str(theirs), 60, "globex's to serve")
    third = answers(service)
    assert third["acme"] == second["acme"]
    assert third["globex"][0] == "globex@2"
    assert order(service, "globex", "acme@1", "rollback") == 404
    assert order(service, "acme", "acme@1", "rollback") == 200
    fourth = answers(service)
    assert fourth["acme"] == first["acme"]
    assert (fourth["globex"], fourth["public"]) == (third["globex"], first["public"])
