"""`onward replay --as-lived` where adapters train: from a published adapter, and from the anchor again."""

from pathlib import Path

import msgspec
import pytest
from logged_world import logged_past, manifests, open_world, settle

from core.events import Hint, TextEdit
from core.ids import OutcomeId, base_ref
from onward.replays.as_lived import prove

PARTITIONS = {"ONWARD_INGEST__PARTITIONS": "2"}
LEARNS = {
    "lora.rank": 4,
    "optimizer.learning_rate": 4e-3,
    "batch.turns": 8,
    "batch.min_turns": 4,
    "checkpoints.keep": 2,
    "checkpoints.max_lead": 10,
    "objective.kl.anchor_versions": 2,
    "objective.demonstration_weight": 0.5,
    "objective.hints.weight": 0.5,
}
SAID = {
    "edits": (TextEdit(start=2, end=4, token_ids=(300, 301)),),
    "hints": (Hint(start=0, end=9, text="no, use our logger", outcome_id=OutcomeId("said")),),
}


@pytest.mark.parametrize("back_to", [1, 2])
def test_every_version_comes_out_as_it_was(tmp_path: Path, back_to: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Versions 2 to 5 are made, and rolled back to one that its manifests make again; from it 6 and 7 are made."""
    world = open_world(tmp_path / "service")
    learner = world.learner(settings=LEARNS)
    for seed in range(4):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
        world.release(2 + seed)
    for version in (5, 4, 3, 2)[: 5 - back_to]:
        world.release(version, "rolled_back")
    world.release(back_to)
    for seed in (7, 8):
        world.tell(*((turn, msgspec.structs.replace(reward, **SAID)) for turn, reward in logged_past(8, seed=seed)))
        settle(learner)
    learner.close()
    made = {one.version.version: one for one in manifests(world)}
    assert (made[6].parent, made[6].afresh, made[7].parent) == (base_ref(back_to), False, base_ref(6))
    assert all(any(record.told for record in made[version].turns) for version in (6, 7))
    assert all(record.taught for version in (6, 7) for record in made[version].turns)
    world.release(7)
    assert prove(world.directory, None, PARTITIONS), capsys.readouterr().out
    world.close()
