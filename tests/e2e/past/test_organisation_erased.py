"""An organisation is erased from a service that runs: its words, its policy and its name; another's weights stay."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from erased_files import files_with
from service_tree import Service, wait_for

from core.errors import ConfigError
from core.ids import PolicyName
from ingest.erasure.statement import verified
from onward.wiring.foundation import open_foundation
from onward.wiring.privacy.erasing import refuse_erased

CANARY = "Zugspitzfeuersalamander"
KEYS = "".join(
    f'[[api.keys]]\nkey = "key-of-{name}"\nnamespace = "{name}"\nscopes = {json.dumps(scopes)}\n'
    for name, scopes in {
        "acme": ["chat", "feedback", "read"],
        "beta": ["chat", "feedback", "read"],
        "rules": ["admin", "read"],
    }.items()
)
BETA = '[policies.beta]\nnamespaces = ["beta"]\n'
ACME = '[policies.acme]\nnamespaces = ["acme"]\n'


def asked(service: Service, method: str, path: str, key: str, body: Any = None) -> httpx.Response:
    headers = {"authorization": f"Bearer key-of-{key}"}
    return httpx.request(method, service.url + path, headers=headers, json=body, timeout=60)


def chat(service: Service, key: str, word: str) -> httpx.Response:
    body = {"model": "onward-tiny", "messages": [{"role": "user", "content": f"{word} total(xs)"}], "max_tokens": 8}
    return asked(service, "POST", "/v1/chat/completions", key, body)


def say(service: Service, key: str, count: int, word: str) -> None:
    for number in range(count):
        answer = chat(service, key, word)
        assert answer.status_code == 200, answer.text
        turn = answer.headers["x-onward-inference-id"]
        for name, value in (("accepted", bool(number % 2)), ("comment", f"so much for {word}")):
            told = {"inference_id": turn, "metric_name": name, "value": value}
            assert asked(service, "POST", "/v1/feedback", key, told).status_code == 200


def live(service: Service, policy: str) -> str:
    return str(asked(service, "GET", f"/v1/policies?policy={policy}", "rules").json()["live"])


def digests(service: Service, policy: str) -> list[str]:
    foundation = open_foundation(service.directory, service.overrides)
    try:
        with foundation.store.look() as view:
            return [each.digest for each, _ in view.policies.newest(100, PolicyName(policy))]
    finally:
        foundation.close()


@pytest.mark.timeout(600)
def test_an_organisation_goes_whole_and_no_other_changes(make_service: Callable[..., Service]) -> None:
    service = make_service(learner__batch__turns=8, learner__batch__min_turns=8, learner__lora__rank=4)
    settings = service.directory / "onward.toml"
    settings.write_text(KEYS + BETA + ACME)
    service.start()
    say(service, "beta", 8, "write")
    say(service, "acme", 8, CANARY)
    for policy, version in (("acme", "acme@2"), ("beta", "beta@2"), ("base", "3")):
        wait_for(lambda policy=policy, version=version: live(service, policy) == version, 120, version)
    say(service, "beta", 8, "write")
    wait_for(lambda: (live(service, "beta"), live(service, "base")) == ("beta@3", "4"), 120, "beta's next versions")
    before = digests(service, "beta")
    said = asked(service, "POST", "/v1/erasures/preview", "rules", {"organisation": "acme"}).json()
    assert (said["versions"], said["turns"], said["updates"]) == (2, 8, 1)
    assert asked(service, "DELETE", "/v1/organisations/acme", "acme").status_code == 403
    assert (
        asked(service, "DELETE", "/v1/organisations/globex", "rules").json()["error"]["code"] == "unknown_organisation"
    )
    given = asked(service, "DELETE", "/v1/organisations/acme?why=they%20left", "rules").json()
    assert (given["kind"], given["subject"], len(given["parts"])) == ("organisation", "acme", 1)
    again = asked(service, "DELETE", "/v1/organisations/acme", "rules").json()
    assert again["erasure_id"] == given["erasure_id"]
    refused = chat(service, "acme", "write")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "organisation_erased")
    assert chat(service, "beta", "write").status_code == 200

    def order() -> Any:
        return asked(service, "GET", f"/v1/erasures/{given['erasure_id']}", "rules").json()

    wait_for(
        lambda: "take [policies.acme] out of the settings" in order()["waits_for"], 120, "the settings to be asked"
    )
    service.stop()
    settings.write_text(KEYS + BETA)
    service.start()
    assert chat(service, "acme", "write").status_code == 403, "its namespace is no part of the base policy's"
    wait_for(lambda: order()["state"] == "done", 120, "the end of the erasure")
    statement, _ = verified(order()["statement"])
    service.stop()
    assert (statement["policy"], statement["namespaces"]) == ("acme", ["acme"])
    removed = {place: step.get("removed") for place, step in statement["places"].items()}
    assert removed["weights"] == {"versions": 2}
    assert removed["policy"]["versions"] == 2
    assert removed["learner"]["files"] > 0
    assert files_with(service.directory, CANARY) == []
    assert [path for path in service.directory.rglob("*") if path.is_file() and "acme" in str(path)] == []
    assert digests(service, "beta") == before
    foundation = open_foundation(service.directory, service.overrides)
    try:
        with foundation.store.look() as view:
            assert view.policies.versions(PolicyName("acme")) == []
        for policies in (BETA + ACME, BETA + '[policies.acme2]\nnamespaces = ["acme"]\n'):
            settings.write_text(KEYS + policies)
            named = open_foundation(service.directory, service.overrides)
            with pytest.raises(ConfigError, match="is not given again"):
                refuse_erased(named)
            named.close()
    finally:
        foundation.close()
