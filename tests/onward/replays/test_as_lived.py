"""`onward replay --as-lived` on a past with everything that makes it hard.

Corrections, also of texts that users wrote, a restart, a rollback to weights that were adopted, and a KL term whose
anchor moved."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from logged_world import World, logged_past, manifests, open_world, settle
from sqlalchemy import delete

from core.errors import ConfigError
from core.events import TextEdit
from core.ids import base_ref
from core.store.database import tables
from learner import past as learner_past
from learner.versions import manifest
from onward.cli import app
from onward.replays.as_lived import prove

PARTITIONS = {"ONWARD_INGEST__PARTITIONS": "2"}
LEARNS = {
    "batch.turns": 8,
    "batch.min_turns": 4,
    "users.distrust": True,
    "objective.kl.anchor_versions": 2,
    "objective.demonstration_weight": 0.5,
}
EDITS = (TextEdit(start=2, end=4, token_ids=(300, 301, 302)), TextEdit(start=6, end=6, token_ids=(303,)))


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Make versions 2 to 5, roll 3 to 5 back, and make 6 and 7 from version 2.

    Version 7's learner was started anew."""
    world = open_world(tmp_path_factory.mktemp("lived") / "service")
    learner = world.learner(settings=LEARNS)
    for seed in range(4):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
        world.release(2 + seed)
    for version in (5, 4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner_past, "MOST_REMADE_S", -1.0)  # version 2 takes too long: it is adopted
        settle(learner)
    past = [(turn, msgspec.structs.replace(reward, edits=EDITS)) for turn, reward in logged_past(8, seed=7)]
    world.tell(*past)
    settle(learner)
    learner.close()
    world.release(6)
    learner = world.learner(settings=LEARNS)
    amended = zip(past, [{"value": 0.1}, {"edits": EDITS[1:]}, {"edits": ()}] * 2, strict=False)
    world.tell(*[(turn, msgspec.structs.replace(reward, revision=1, **new)) for (turn, reward), new in amended])
    settle(learner)
    learner.close()
    world.release(7)
    return world


def test_every_version_comes_out_as_it_was(lived: World, capsys: pytest.CaptureFixture[str]) -> None:
    made = {one.version: one for one in manifests(lived)}
    assert (made[base_ref(6)].parent, made[base_ref(6)].afresh, made[base_ref(7)].parent) == (
        base_ref(2),
        True,
        base_ref(6),
    )
    assert any(one.held_to is not None for one in made.values())
    assert any(record.applied_revision is not None for record in made[base_ref(7)].turns)
    assert all(record.taught for record in made[base_ref(6)].turns)
    assert [bool(record.taught) for record in made[base_ref(7)].turns] == [True, True, False] * 2

    assert prove(lived.directory, None, PARTITIONS)

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["version 2", "version 6", "version 7"]
    assert all("equals the live one" in line for line in lines[:-1])
    assert "all as they were lived" in lines[-1]


def test_a_branch_that_was_left_is_proven_too(lived: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(lived.directory, 5, PARTITIONS)
    assert len(capsys.readouterr().out.splitlines()) == 5


def another_reward(made: manifest.Manifest) -> manifest.Manifest:
    first = msgspec.structs.replace(made.rewards[0], value=made.rewards[0].value + 1.0)
    return msgspec.structs.replace(made, rewards=(first, *made.rewards[1:]))


def another_record(made: manifest.Manifest) -> manifest.Manifest:
    first = msgspec.structs.replace(made.turns[0], baseline=made.turns[0].baseline + 1.0)
    return msgspec.structs.replace(made, turns=(first, *made.turns[1:]))


@pytest.mark.parametrize(
    ("change", "said"),
    [(another_reward, "digest "), (another_record, "its weights equal the live ones, but the records of its turns")],
)
def test_a_manifest_of_another_update_is_told_apart(
    lived: World,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[manifest.Manifest], manifest.Manifest],
    said: str,
) -> None:
    path = manifest.path_of(base_ref(6))
    kept = lived.blobs.get(path)
    lived.blobs.put(path, manifest.encode(change(manifest.decode(kept))))
    try:
        assert not prove(lived.directory, None, PARTITIONS)
    finally:
        lived.blobs.put(path, kept)
    assert f"version 6: DIFFERS: {said}" in capsys.readouterr().out


def test_without_its_turns_nothing_is_proven(
    lived: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [reward.inference_id for reward in manifests(lived)[0].rewards][:3]
    rows = tables.turns.c.inference_id.in_(ids)
    with lived.store.begin() as connection:
        kept = [dict(row._mapping) for row in connection.execute(tables.turns.select().where(rows))]
        connection.execute(delete(tables.turns).where(rows))
    try:
        monkeypatch.setenv("ONWARD_INGEST__PARTITIONS", "2")
        with pytest.raises(SystemExit) as ended:
            app(["replay", str(lived.directory), "--as-lived"])
        assert ended.value.code == 1
    finally:
        with lived.store.begin() as connection:
            connection.execute(tables.turns.insert(), kept)
    assert "version 2: DIFFERS: 3 of its 8 turns are no longer in the store" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--as-lived", "--seed", "3"], "--seed: not with --as-lived"),
        (["--as-lived", "--version", "99"], "--version 99: there is no such version"),
        (["--as-lived", "--version", "-1"], "--version -1: want the number of a version, from 1"),
        (["--out", "x", "--version", "2"], "--version: only with --as-lived"),
        ([], "--out: name a directory"),
    ],
)
def test_options_that_say_nothing_together_are_refused(
    lived: World, arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONWARD_INGEST__PARTITIONS", "2")
    with pytest.raises(ConfigError, match=named):
        app(["replay", str(lived.directory), *arguments], exit_on_error=False)
