"""The table of events says what each program means by them; one of its own may replace it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve
from exports import SPEC, Program, outcomes, said
from prometheus_client import Metric

from api.feedback.reports.otlp.table import load_events
from core.errors import ConfigError
from core.telemetry import REGISTRY


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", spec=SPEC) as service:
        yield service


def test_the_shipped_table_names_outcomes_of_the_shipped_spec() -> None:
    for spec in load_events(None).events:
        given = [each for meanings in spec.says.values() for each in meanings.values()]
        for name, value in [pair for each in given for pair in each.items()]:
            assert SPEC.outcomes[name].wanted(value) is None, (spec.names, name, value)
        assert set(spec.measures) <= set(SPEC.outcomes)
        assert spec.named is None or spec.named.otherwise in SPEC.outcomes


def test_a_table_of_ones_own_replaces_it(tmp_path: Path) -> None:
    table = tmp_path / "events.toml"
    table.write_text(
        '[[events]]\nsource = "ours"\nnames = ["done"]\nanswers = ["id"]\nsays.ok.yes = { accepted = true }\n'
    )
    with serve(tmp_path / "service", spec=SPEC, feedback={"events": table}) as service:
        answer = service.chat("hi").json()
        program = Program(service)
        program.log("done", ok="yes", id=answer["id"])
        program.log(event__name="codex.tool_decision", decision="denied", source="User")
        assert program.send_logs() == (0, "")
        assert [said(each) for each in outcomes(service)] == [("accepted", True, answer["onward"]["inference_id"])]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("events = 7", "Expected `array`"),
        ('[[events]]\nsource = "x"\nnames = ["a"]', "no outcome would come of it"),
        ('[[events]]\nsource = "X Y"\nnames = ["a"]\nmeasures.a = "b"', "source"),
        ('[[events]]\nsource = "x"\nnames = ["a"]\ncolour = 1\nmeasures.a = "b"', "colour"),
        ("[[events", "Expected"),
        (None, "No such file"),
    ],
)
def test_a_wrong_table_starts_no_service(tmp_path: Path, text: str | None, what: str) -> None:
    table = tmp_path / "events.toml"
    if text is not None:
        table.write_text(text)
    with pytest.raises(ConfigError, match=what):
        load_events(table)


def test_metrics_have_bounded_labels(service: Service) -> None:
    program = Program(service)
    program.log("x" * 100, event__name="y" * 100)
    program.send_logs()
    families: list[Metric] = [family for family in REGISTRY.collect() if family.name == "onward_unjoined_events"]
    sources = {sample.labels["source"] for family in families for sample in family.samples}
    assert sources <= {spec.source for spec in load_events(None).events} | {"tabby", "continue"}
