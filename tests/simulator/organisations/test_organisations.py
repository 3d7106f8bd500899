"""Organisations with opposite tastes, and what the table says of their answers."""

import itertools
import random
import tomllib
from typing import Any

import pytest

from core.settings import Settings
from onward.commands.demos.organisations import settings_of
from simulator.drive import Driver, Traffic
from simulator.organisations.table import in_style, report_of, succeeded
from simulator.organisations.tastes import MOST, organisations, said, taste_for
from simulator.outcome.truth import Lived, Truth
from simulator.tasks.sampling import sample_task
from simulator.tasks.taste import STYLES, Style, judge_write, wanted
from simulator.users.ide import Session


def answered(style: Style, number: int, version: Any) -> Lived:
    """Return a session whose answer passes its tests and is in a style."""
    task = sample_task(random.Random(number), "write")
    session = Session(task, session_id=str(number), versions=[version], ending="written")
    session.code = wanted(task, taste_for(style))
    session.quality = judge_write(session.code, True, style)
    return Lived(float(number), session, "accepted")


def test_no_answer_pleases_two_of_them() -> None:
    styles = organisations(MOST)
    assert len(set(styles.values())) == len({said(style) for style in styles.values()}) == MOST == len(STYLES)
    for number in range(50):
        task = sample_task(random.Random(number), "write")
        for mine, other in itertools.permutations(styles.values(), 2):
            code = wanted(task, taste_for(mine))
            assert judge_write(code, True, taste_for(mine).style(task)).in_taste
            assert not judge_write(code, True, taste_for(other).style(task)).in_taste


@pytest.mark.parametrize("count", [1, MOST + 1])
def test_there_are_tastes_for_a_few(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} organisations"):
        organisations(count)


def test_shares_are_of_what_was_written() -> None:
    style, other = STYLES[:2]
    lived = [answered(style, n, "acme@1") for n in range(3)] + [answered(other, 3, "acme@1")]
    assert (in_style(lived, style), in_style(lived, other), in_style([], style)) == (0.75, 0.25, 0.0)


def report_with(end: dict[str, Style], failures: int = 0) -> dict[str, Any]:
    styles = organisations(2)
    drivers = {}
    for name in styles:
        driver = Driver.__new__(Driver)
        driver.traffic, driver.truth = Traffic(("",), 1.0, 1.0, 0), Truth()
        driver.truth.lived = [answered(STYLES[n % 4], n, f"{name}@1") for n in range(100)]
        driver.truth.lived += [answered(end[name], n, f"{name}@2") for n in range(100, 200)]
        driver.truth.failures = ["refused"] * failures
        drivers[name] = driver
    return report_of(drivers, styles)


def test_each_must_get_what_it_likes_itself() -> None:
    styles = organisations(2)
    good = report_with(styles)
    assert succeeded(good)
    assert good["acme"]["start"] == {"acme": 0.25, "bolt": 0.25}
    assert good["acme"]["end"] == {"acme": 1.0, "bolt": 0.0}
    assert (good["acme"]["versions"], good["acme"]["policies"]) == (2, ["acme"])
    assert not succeeded(report_with(styles, failures=1))
    assert not succeeded(report_with({"acme": styles["acme"], "bolt": styles["acme"]})), "one taste for both"


def test_the_service_has_a_policy_and_a_key_for_each() -> None:
    keys = {name: f"key-of-{name}" for name in organisations(3)}
    settings = Settings.model_validate(tomllib.loads(settings_of(keys)))
    assert {name: policy.namespaces for name, policy in settings.policies.items()} == {n: (n,) for n in keys}
    assert {key.namespace: key.key for key in settings.api.keys} == keys
    assert settings.sharing.base_learns_from == "none"
