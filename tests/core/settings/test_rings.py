"""The settings of rings: who may be in them, and which are a policy's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.ids import BASE, PolicyName
from core.settings import Settings, load_settings
from core.settings.policies import rings_of

Load = Callable[..., Settings]
ACME, GLOBEX = PolicyName("acme"), PolicyName("globex")
TOML = """
[[release.rings]]
name = "staff"
users = {default = ["ada", "grace"]}
namespaces = ["lab"]
min_sessions = 5
min_duration_s = 60.0

[[release.rings]]
name = "friends"
namespaces = ["acme"]

[[release.rings]]
name = "early"
share = 0.05

[policies.acme]
namespaces = ["acme"]

[policies.globex]
namespaces = ["globex", "globex-lab"]
workloads = {ask = "acme"}
[[policies.globex.rings]]
name = "testers"
namespaces = ["globex-lab"]
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(text: str, **environment: str) -> Settings:
        (tmp_path / "onward.toml").write_text(text)
        return load_settings(tmp_path / "onward.toml", environment)

    return loaded


def names(settings: Settings, policy: PolicyName) -> list[str]:
    return [ring.name for ring in rings_of(settings.policies, settings.release.rings, policy)]


def test_without_any_there_are_none() -> None:
    assert Settings().release.rings == ()
    assert rings_of({}, (), BASE) == ()


def test_each_policy_has_its_own_or_those_in_which_it_may_have_users(load: Load) -> None:
    settings = load(TOML)
    assert names(settings, BASE) == ["staff", "early"]
    assert names(settings, ACME) == ["friends", "early"]
    assert names(settings, GLOBEX) == ["testers"]
    without = TOML.replace("[policies.acme]", "[policies.acme]\nrings = []")
    assert names(load(without), ACME) == []


def test_a_policy_may_name_a_namespace_that_gives_it_a_workload(load: Load) -> None:
    given = TOML.replace(
        "[policies.globex]", '[[policies.acme.rings]]\nname = "guests"\nusers = {globex = ["eve"]}\n\n[policies.globex]'
    )
    assert names(load(given), ACME) == ["guests"]
    with pytest.raises(ConfigError, match=r"acme\.rings\.guests: nobody in namespace elsewhere is answered by acme"):
        load(given.replace('globex = ["eve"]', 'elsewhere = ["eve"]'))


@pytest.mark.parametrize(
    ("rings", "wrong"),
    [
        ('[{name = "a", share = 0.1}, {name = "a", share = 0.2}]', "a: two rings have this name"),
        ('[{name = "a", share = 0.2}, {name = "b", share = 0.2}]', r"b\.share: 0\.2 is no more than the 0\.2"),
        ('[{name = "a"}]', "a: say who is in it"),
        ('[{name = "a", users = {default = []}}]', "a: say who is in it"),
        ('[{name = "a", share = 1.0}]', r"rings\.0\.share"),
        ('[{name = "a", share = 0.1, min_sessions = 0}]', r"rings\.0\.min_sessions"),
        ('[{name = "Staff", share = 0.1}]', r"rings\.0\.name"),
        ('[{name = "a", users = ["ada"]}]', r"rings\.0\.users"),
        ('[{name = "a", group = ["ada"]}]', r"rings\.0\.group"),
    ],
)
def test_rings_that_contradict_themselves_are_refused(load: Load, rings: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        load("", ONWARD_RELEASE__RINGS=rings)


def test_rings_are_refused_where_canaries_are_off(load: Load) -> None:
    with pytest.raises(ConfigError, match=r'rings: each is a canary, which canary\.enabled = "off" forbids'):
        load("", ONWARD_RELEASE__RINGS='[{name = "a", share = 0.1}]', ONWARD_RELEASE__CANARY__ENABLED="off")
