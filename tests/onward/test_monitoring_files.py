"""The files of Compose, and what that of monitoring mounts, as data: what can be checked without an engine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
LONGEST_START_S = 1200


class Loader(yaml.SafeLoader):
    """Reads Compose's own tags as what they are of."""


Loader.add_constructor("!reset", lambda loader, node: [])
Loader.add_constructor("!override", lambda loader, node: loader.construct_mapping(node))


def services(name: str = "docker-compose.monitoring.yml") -> dict[str, Any]:
    return dict(yaml.load((ROOT / name).read_text(), Loader)["services"])


def base() -> dict[str, Any]:
    return services("docker-compose.yml")


def seconds(duration: str) -> int:
    assert re.fullmatch(r"\d+s", duration), duration
    return int(duration[:-1])


@pytest.mark.parametrize("over", [None, "docker-compose.gpu.yml", "docker-compose.monitoring.yml"])
def test_up_with_wait_ends_whatever_fails(over: str | None) -> None:
    """It ends once every container is well, or with an error when one has failed: each says in time which it is.

    What is waited for until it has ended well is given up after a few tries. All else is judged by a check that is
    over at some time as long as its container runs; and nobody waits for the health of what has no check."""
    found = base()
    for name, service in ({} if over is None else services(over)).items():
        whole = found.get(name, {})
        health = (
            {"healthcheck": {**whole.get("healthcheck", {}), **service["healthcheck"]}}
            if "healthcheck" in service
            else {}
        )
        found[name] = whole | service | health
    waits = [
        (each, how["condition"]) for service in found.values() for each, how in service.get("depends_on", {}).items()
    ]
    once = {name for name, condition in waits if condition == "service_completed_successfully"}
    asked_for_alone = {name for name, service in found.items() if service.get("restart") == "no"}
    assert (once, asked_for_alone) == ({"secrets", "migrate", "engine-arguments"}, {"simulator", "doctor"})
    assert all(found[name]["profiles"] for name in asked_for_alone)
    for name in once:
        assert re.fullmatch(r"no|on-failure:\d", found[name].get("restart", "no")), name
        assert found[name].get("healthcheck", {"disable": True}) == {"disable": True}, name
    for name in found.keys() - once - asked_for_alone:
        check = found[name]["healthcheck"]
        assert (check["test"][0], len(check["test"]) > 1, found[name]["restart"]) == ("CMD", True, "unless-stopped"), (
            name
        )
        tries_s = check["retries"] * (seconds(check["interval"]) + seconds(check["timeout"]))
        assert seconds(check["start_period"]) + tries_s <= LONGEST_START_S, name
    assert not {name for name, condition in waits if condition == "service_healthy"} & (once | asked_for_alone)


def test_every_command_that_waits_has_an_end() -> None:
    """A container that ends and is started again and again is never unhealthy: `--wait` alone waits on for it."""
    pages = (ROOT / "README.md", ROOT / "Makefile", *(ROOT / "docs").rglob("*.md"))
    read = [*pages, *ROOT.glob("docker-compose*.yml"), *DEPLOY.rglob("*.yml"), *(ROOT / "onward").rglob("*.py")]
    commands = [found for file in read for found in re.findall(r"compose [^`\n]*\bup\b[^`\n]*", file.read_text())]
    waiting = [command for command in commands if "--wait" in command]
    assert len(waiting) > 20
    assert [command for command in waiting if f"--wait --wait-timeout {LONGEST_START_S}" not in command] == []


def test_what_it_adds_is_bounded_pinned_and_of_this_machine() -> None:
    added = {name: service for name, service in services().items() if name not in base()}
    assert set(added) == {"alertmanager", "grafana"}
    for name, service in added.items():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["deploy"]["resources"]["limits"]["memory"], name
        for mount in service["volumes"]:
            if isinstance(mount, str):
                source = mount.split(":")[0]
                assert not source.startswith("./") or (ROOT / source).is_dir(), mount


def test_alarms_reach_its_alertmanager() -> None:
    """The stage starts without its profile, and tells the service of that name, at its port."""
    stage = services()["notify"]
    assert stage["profiles"] == []
    assert base()["notify"]["profiles"] == ["alerts"]
    target = load_settings(None, stage["environment"]).alerts.targets["alertmanager"]
    port = services()["alertmanager"]["ports"][0].rsplit(":", 1)[1]
    assert (target.kind, target.url) == ("alertmanager", f"http://alertmanager:{port}")
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (found,) = prometheus["alerting"]["alertmanagers"][0]["dns_sd_configs"]
    assert (found["names"], found["port"]) == (["alertmanager"], int(port))
    (stages,) = prometheus["scrape_configs"][1]["dns_sd_configs"]
    assert "notify" in stages["names"]


def alertmanager(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "alertmanager" / f"{name}.yml").read_text()))


@pytest.mark.parametrize("name", ["alertmanager", "alertmanager-webhook"])
def test_alertmanager_knows_whom_it_routes_to(name: str) -> None:
    config = alertmanager(name)
    routed = {config["route"]["receiver"], *(route["receiver"] for route in config["route"]["routes"])}
    assert routed == {receiver["name"] for receiver in config["receivers"]}
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    for rule in config["inhibit_rules"]:
        for alert in re.findall(r'alertname="(\w+)"', " ".join(rule["target_matchers"] + rule["source_matchers"])):
            assert f"alert: {alert}\n" in rules


def test_the_webhook_alone_is_added_for_who_names_one() -> None:
    quiet, told = alertmanager("alertmanager"), alertmanager("alertmanager-webhook")
    assert told["inhibit_rules"] == quiet["inhibit_rules"]
    assert not any(key.endswith("_configs") for receiver in quiet["receivers"] for key in receiver)
    ((config,),) = (receiver["webhook_configs"] for receiver in told["receivers"])
    mounts = [mount for mount in services()["alertmanager"]["volumes"] if isinstance(mount, dict)]
    assert config["url_file"] in {mount["target"] for mount in mounts}
    assert not any(mount["bind"]["create_host_path"] for mount in mounts)


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    grafana = services()["grafana"]
    places = dict(reversed(mount.split(":")[:2]) for mount in grafana["volumes"])
    provisioning = ROOT / places["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "onward.yml").read_text())["providers"]
    dashboards = sorted((ROOT / places[provider["options"]["path"]]).glob("*.json"))
    assert dashboards
    assert len({json.loads(file.read_text())["uid"] for file in dashboards}) == len(dashboards)
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (ROOT / places[str(home.parent)] / home.name).is_file()
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    port = base()["prometheus"]["ports"][0].rsplit(":", 1)[1]
    assert (source["type"], source["url"]) == ("prometheus", f"http://prometheus:{port}")
