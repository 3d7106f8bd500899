"""Alert rules and the dashboard, against the Prometheus that watches the stack."""

import json
import re
import urllib.parse
import urllib.request
from typing import Any

import pytest
from compose_stack import ROOT, Stack, wait_for
from compose_users import Users

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1200)]


def test_its_rules_are_sound_and_fire_when_they_must(stack: Stack) -> None:
    tests = ["test", "rules", "alerts_test.yml", "stack_test.yml"]
    for command in (["check", "config", "prometheus.yml"], tests):
        said = stack.compose("exec", "-T", "-w", "/etc/prometheus", "prometheus", "promtool", *command)
        assert "SUCCESS" in said
        assert "FAILED" not in said
    groups = ask(stack, "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    written = [(ROOT / "deploy" / "prometheus" / f"{name}.yml").read_text() for name in ("alerts", "stack")]
    assert len(rules) == "".join(written).count("- alert:")
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


def test_the_dashboard_draws_what_there_is(stack: Stack) -> None:
    """Every query is answered, unless no stage has counted its metric yet."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "onward.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    with Users(stack) as users:
        users.wait_turns(10)
        wait_for(lambda: not unanswered(stack, queries), 300, lambda: f"no data: {unanswered(stack, queries)}")
    answered = [query for query in queries if ask(stack, "query", query=query)["result"]]
    assert len(answered) > len(queries) / 2


def unanswered(stack: Stack, queries: list[str]) -> list[str]:
    """Return the queries without an answer although all their metrics exist."""
    return [
        query
        for query in queries
        if not ask(stack, "query", query=query)["result"]
        and all(ask(stack, "query", query=name)["result"] for name in re.findall(r"\bonward_\w+", query))
    ]


def ask(stack: Stack, what: str, **parameters: str) -> dict[str, Any]:
    """Query Prometheus.

    Raises urllib.error.HTTPError for an invalid query."""
    url = f"{stack.address('prometheus', 9090)}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=120) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    return dict(answer["data"])
