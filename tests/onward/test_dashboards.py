"""Prometheus alert rules and Grafana panels use only metrics and labels of the catalogue.

The rules themselves are evaluated by Prometheus in tests/compose."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from core import telemetry

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERIES = re.compile(r"\b(onward_\w+?)(?:_total|_bucket|_count|_sum)?\b(?:\{([^}]*)\})?(?=[\s\[)<>=*/+-]|$)")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
_UNMARKED = re.compile(r"`([^`]+)`|\[([^\]]+)\]\([^)]+\)")
ADDED = {"le", "instance", "job", "stage"}  # by histograms and by Prometheus


def catalogue() -> dict[str, set[str]]:
    """Return the labels of each metric by its name, without a counter's `_total`."""
    return {metric.name: set(labels(metric.name)) for metric in telemetry.REGISTRY.collect()}


def labels(name: str) -> tuple[str, ...]:
    collectors = {id(each): each for each in telemetry.REGISTRY._names_to_collectors.values()}
    return next(tuple(each._labelnames) for each in collectors.values() if each._name == name)


def rules(kind: str = "") -> str:
    return "".join((DEPLOY / "prometheus" / f"{name}{kind}.yml").read_text() for name in ("alerts", "stack"))


def alert_rules() -> list[dict[str, Any]]:
    files = (yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in ("alerts.yml", "stack.yml"))
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def alert_expressions() -> list[str]:
    return [" ".join(rule["expr"].split()) for rule in alert_rules()]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DEPLOY / "grafana" / "onward.json").read_text()))


def drawn_expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("expression", [*alert_expressions(), *drawn_expressions()])
def test_what_is_asked_for_is_in_the_catalogue(expression: str) -> None:
    known = catalogue()
    named = SERIES.findall(expression)
    if not named:
        assert re.search(r"\bup\{", expression)
        return
    there: set[str] = set(ADDED)
    for name, matchers in named:
        assert name in known, f"{name} is not in the catalogue"
        assert set(re.findall(r"(\w+)=", matchers)) <= known[name] | ADDED, name
        there |= known[name]
    for group in GROUPING.findall(expression):
        assert {label.strip() for label in group.split(",")} <= there


def test_every_alert_is_tried_and_documented() -> None:
    alerts = {rule["alert"] for rule in alert_rules()}
    tried = set(re.findall(r'alertname="(\w+)"', rules("_test")))
    assert alerts == tried
    told = re.findall(
        r"^\| <a id=\"(Onward\w+)\"></a>`(\w+)` \| (\w+) \| \w+ [^|]+ \| ([\w`]\S* [^|]+) \|$",
        (DEPLOY.parent / "docs" / "operations.md").read_text(),
        re.MULTILINE,
    )
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in alert_rules()}
    assert {name: severity for _, name, severity, _ in told} == severities, "each has what it means, and what to do"
    assert [anchor for anchor, *_ in told] == [name for _, name, *_ in told]
    advice = {name: _UNMARKED.sub(r"\1\2", what) for _, name, _, what in told}
    for rule in alert_rules():
        said = {"advice": advice[rule["alert"]], "docs": f"docs/operations/#{rule['alert']}"}
        assert rule["annotations"] == {"summary": rule["annotations"]["summary"], **said}, "whoever is woken reads it"


def test_panels_have_a_place_each() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
