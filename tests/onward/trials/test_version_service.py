"""One version as a service: answered by that version alone, to whoever has its key, and leaving nothing behind."""

import asyncio
import signal
import tempfile
from pathlib import Path

import httpx
import pytest
from byte_renderer import ByteRenderer
from scripted_policy import ScriptedPolicy, says

import onward
from core.ids import base_ref
from core.reward_spec import load_reward_spec
from onward.trials.version_service import VersionAddress, serve_version

SPEC = load_reward_spec(Path(onward.__file__).parent / "rewards.toml")
CANDIDATE = base_ref(7)


async def asked(address: VersionAddress, key: str) -> httpx.Response:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60.0) as client:
        body = {"model": address.model, "messages": [{"role": "user", "content": "hi"}]}
        return await client.post(f"{address.base_url}/chat/completions", json=body)


def test_it_answers_as_the_version_and_as_nobodys_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    policy = ScriptedPolicy()
    policy.scripts.append(says("hello", versions=[7] * 6))

    async def ask() -> httpx.Response:
        async with serve_version(policy, CANDIDATE, ByteRenderer(), SPEC, "tiny") as address:
            refused = await asked(address, "another key")
            assert refused.status_code == 401
            return await asked(address, address.api_key)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert answer.json()["onward"]["policy_version"] == 7
    (request,) = policy.requests
    assert (request.version, request.is_case) == (CANDIDATE, True)
    assert not list(tmp_path.iterdir()), "its log and store are deleted"


def test_two_versions_answer_side_by_side() -> None:
    policies = [ScriptedPolicy(), ScriptedPolicy()]
    for number, policy in enumerate(policies):
        policy.default = says(f"version {number}")

    async def ask() -> list[str]:
        async with (
            serve_version(policies[0], base_ref(1), ByteRenderer(), SPEC, "tiny") as one,
            serve_version(policies[1], base_ref(2), ByteRenderer(), SPEC, "tiny") as other,
        ):
            answers = await asyncio.gather(*(asked(each, each.api_key) for each in (one, other, one)))
            return [answer.json()["choices"][0]["message"]["content"] for answer in answers]

    assert asyncio.run(ask()) == ["version 0", "version 1", "version 0"]


def test_an_interrupt_is_the_commands_own() -> None:
    async def handlers() -> tuple[object, object]:
        before = signal.getsignal(signal.SIGINT)
        async with serve_version(ScriptedPolicy(), CANDIDATE, ByteRenderer(), SPEC, "tiny"):
            return before, signal.getsignal(signal.SIGINT)

    before, while_it_serves = asyncio.run(handlers())
    assert while_it_serves is before
