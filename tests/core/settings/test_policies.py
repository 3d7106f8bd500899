"""Namespaces find the policy that speaks for them, and settings that contradict each other are refused by name."""

from pathlib import Path

import pytest

from core.errors import ConfigError
from core.ids import Namespace
from core.settings import Settings, load_settings
from core.settings.policies import owner_of, policy_of, teaches_base

TWO = """
[policies.acme]
namespaces = ["acme", "acme-labs"]
workloads = {autocomplete = "base", review = "globex"}
[policies.globex]
namespaces = ["globex"]
weight = 3
"""


def _load(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "onward.toml").write_text(text)
    return load_settings(tmp_path / "onward.toml", {})


@pytest.mark.parametrize(
    ("namespace", "workload", "policy"),
    [
        ("acme", "chat", "acme"),
        ("acme-labs", "chat", "acme"),
        ("acme", "autocomplete", "base"),
        ("acme", "review", "globex"),
        ("globex", "autocomplete", "globex"),
        ("somebody", "chat", "base"),
        ("acm", "chat", "base"),
        ("base", "chat", "base"),
    ],
)
def test_a_request_is_of_its_namespaces_policy(tmp_path: Path, namespace: str, workload: str, policy: str) -> None:
    assert policy_of(_load(tmp_path, TWO).policies, Namespace(namespace), workload) == policy


def test_a_namespace_belongs_to_its_policy_whoever_answers(tmp_path: Path) -> None:
    policies = _load(tmp_path, TWO).policies
    assert [owner_of(policies, Namespace(name)) for name in ("acme-labs", "nobody")] == ["acme", "base"]


@pytest.mark.parametrize(
    ("learns_from", "namespaces"),
    [
        ('"all"', ["acme", "acme-labs", "globex", "nobody"]),
        ('"none"', ["nobody"]),
        ('["globex"]', ["globex", "nobody"]),
        ("[]", ["nobody"]),
    ],
)
def test_the_base_learns_from_whom_it_may(tmp_path: Path, learns_from: str, namespaces: list[str]) -> None:
    settings = _load(tmp_path, f"{TWO}[sharing]\nbase_learns_from = {learns_from}\n")
    asked = map(Namespace, ("acme", "acme-labs", "globex", "nobody"))
    assert [each for each in asked if teaches_base(settings.policies, settings.sharing, each)] == namespaces


_MANY = (
    "".join(f'[policies.p{each}]\nnamespaces = ["n{each}"]\n' for each in range(33)) + '[serving]\nengine = "sglang"\n'
)


def test_as_many_policies_as_fit_are_served_by_sglang_where_versions_are_adapters(tmp_path: Path) -> None:
    settings = _load(tmp_path, _MANY + "[serving.sglang.adapters]\nloaded = 103\n[learner.lora]\nrank = 8")
    assert len(settings.policies) == 33


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[policies.base]\nnamespaces = ["a"]', r"policies: .*base: .* has no section"),
        ('[policies.a]\nnamespaces = ["x"]\n[policies.b]\nnamespaces = ["x"]', r"b\.namespaces: x is of policy a"),
        ('[policies.a]\nnamespaces = ["x"]\nworkloads = {chat = "b"}', r"a\.workloads\.chat: there is no policy b"),
        ("[policies.a]\nnamespaces = []", r"policies\.a\.namespaces"),
        ("[policies.a]\nweight = 1.0", r"policies\.a\.namespaces"),
        ('[policies.a]\nnamespaces = ["x"]\nweight = 0', r"policies\.a\.weight"),
        ('[policies.A]\nnamespaces = ["x"]', r"policies\.A"),
        (
            '[policies.a]\nnamespaces = ["x"]\n[serving]\nengine = "sglang"',
            r"policies: servers of SGLang have one base .* learner\.lora\.rank",
        ),
        (
            _MANY + "[learner.lora]\nrank = 8",
            r"policies: .* need 103 adapters.*serving\.sglang\.adapters\.loaded is 100",
        ),
        ('[sharing]\nbase_learns_from = "some"', r"sharing\.base_learns_from"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _load(tmp_path, text)
