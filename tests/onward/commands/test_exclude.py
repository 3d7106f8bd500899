"""`onward exclude`: it shows what would change, and what it orders leads the learner back to before the first use."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from logged_world import START, World, logged_past, manifests, open_world, settle

from core.errors import ConfigError
from core.ids import UserHash, base_ref
from core.operations.exclusions import Foreseen
from learner.stage import Learner
from onward.cli import app
from onward.commands.operators.exclusions import _lines

LIAR = UserHash("mallory")
PARTITIONS = ["--set", "ingest.partitions=2"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield a service in which a liar spoke first in what version 3 learned from; version 4 is of others."""
    world = open_world(tmp_path / "service")
    for seed in range(3):
        past = logged_past(8, seed=seed)
        told = [(msgspec.structs.replace(turn, user_id=LIAR), reward) for turn, reward in past[: 2 * (seed == 1)]]
        learn(world, [*told, *past[len(told) :]])
    yield world
    world.close()


def learn(world: World, past: list[object]) -> None:
    learner = world.learner()
    world.tell(*past)  # type: ignore[arg-type]
    settle(learner)
    learner.close()


def exclude(world: World, *options: str) -> None:
    app(["exclude", str(world.directory), *PARTITIONS, *options], result_action="return_value")


def test_it_shows_what_would_change_and_then_orders_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for version in (2, 3, 4):
        world.release(version)
    capsys.readouterr()
    exclude(world, "--user", LIAR, "--json")
    shown = json.loads(capsys.readouterr().out)
    seconds = shown.pop("again_s")
    assert shown == {
        "exclusion_id": None,
        "selected": 2,
        "learned": 2,
        "gone": 0,
        "abandoned": [3, 4],
        "updates": 2,
        "again": 14,
        "back_to": 2,
        "soon": {"servable": "now", "about_s": 0.0, "lost": None, "exclusion_id": None},
        "rollback": 2,
        "refused": [],
    }
    assert seconds > 0
    exclude(world, "--user", LIAR)
    told = capsys.readouterr().out
    told = " ".join(told.split())
    assert "versions 3 to 4 are abandoned: 2, made by 2 updates; learning goes on from version 2" in told
    assert "14 other turns that they learned from are learned again: about" in told
    assert "nothing was changed" in told
    with world.store.look() as view:
        assert (view.exclusions.after(), view.orders.unfinished("local")) == ([], [])

    exclude(world, "--user", LIAR, "--why", "he lies", "--yes")
    assert "exclusion 1, by shell:" in capsys.readouterr().out
    with world.store.look() as view:
        (only,) = view.exclusions.after()
        (order,) = view.orders.unfinished("local")
        *_, entry = view.audit.in_order()
    assert (only.what.users, only.why, only.by) == (frozenset((LIAR,)), "he lies", order.by)
    assert (order.kind, order.version, order.why) == ("rollback", base_ref(2), "he lies")
    deed = json.loads(entry.record)
    assert (deed["kind"], deed["what"]) == ("order", "onward exclude")
    assert deed["objects"] == {"exclusion_id": "1", "order_id": str(order.order_id)}

    for version in (4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    learner = world.learner()
    settle(learner)
    learner.close()
    made = [(one.version, one.parent, len(one.turns)) for one in manifests(world)[3:]]
    assert made == [(base_ref(5), base_ref(2), 8), (base_ref(6), base_ref(5), 6)]
    exclude(world, "--user", LIAR, "--json")
    again = json.loads(capsys.readouterr().out)
    assert (again["learned"], again["back_to"]) == (0, None), "of what is gone on with, no version learned from it"


def test_refused_candidates_are_named_even_if_no_lineage_changes() -> None:
    said = list(_lines(Foreseen(selected=1, refused=(base_ref(5),))))
    assert said[-1] == "version 5 will serve nobody"


def test_candidates_are_refused_and_the_learner_leaves_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.release(2)
    capsys.readouterr()
    exclude(world, "--from", START.isoformat(), "--to", START.isoformat().replace("00:00:00", "00:00:02"), "--json")
    assert json.loads(capsys.readouterr().out)["back_to"] == 1
    exclude(world, "--version", "3", "--user", LIAR, "--yes", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["back_to"], shown["abandoned"]) == (2, [3, 4])
    assert (shown["rollback"], shown["refused"]) == (None, [3, 4])
    with world.store.look() as view:
        verdicts = [view.policies.get(base_ref(version)).verdict for version in (2, 3, 4)]  # type: ignore[union-attr]
    assert [None if verdict is None else verdict.action for verdict in verdicts] == [None, "refuse", "refuse"]
    learner: Learner = world.learner()
    settle(learner)
    learner.close()
    assert [one.parent for one in manifests(world)[3:]] == [base_ref(2), base_ref(5)]


def test_what_excludes_nothing_or_everything_is_refused(world: World) -> None:
    world.release(2)
    for options, why in [
        ([], "say whose or which turns: --user, --turn, --from, --to or --version"),
        (["--namespace", "acme"], "say whose or which turns"),
        (["--version", "9"], "--version: no policy version 9"),
        (["--version", "1"], "--version: version 1 learned from no turn that is known"),
        (["--user", "nobody"], "--user: user nobody has no turn"),
        (["--user", LIAR, "--user", "nobody"], "--user: user nobody has no turn"),
        (["--turn", "nowhere"], "--turn: no turn nowhere in the store"),
        (["--version", "2", "--user", LIAR], "no turn in the store meets all of these conditions"),
        (["--user", LIAR, "--namespace", "acme"], "--user: user mallory has no turn"),
        (["--from", "2031-01-01T00:00:00Z"], "no turn in the store meets all of these conditions"),
        (["--from", "noon"], "--from noon: want a time"),
    ]:
        with pytest.raises(ConfigError, match=why):
            exclude(world, *options, "--yes")
    with world.store.look() as view:
        assert (view.exclusions.after(), view.orders.unfinished("local")) == ([], [])
