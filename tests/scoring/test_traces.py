"""Each revision of a reward is in the trace of its turn, with its value."""

from types import ModuleType
from typing import Any

from kept_spans import kept_spans


def test_each_revision_of_a_reward_is_traced(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("session", 0)
    world.append(turn, events.outcome(turn, "rejected", True, 10), events.outcome(turn, "rating", 1.0, 12))
    with kept_spans() as kept:
        lab.drain(world.scorer(lab.SPEC))
        rewards = world.rewards()
        assert {span.name for span in kept.spans} == {"reward"}
        assert kept.of_turn(turn.inference_id)
    found = [(span.attributes["onward.revision"], span.attributes["onward.value"]) for span in kept.spans]
    assert found == [(reward.revision, reward.value) for reward in rewards]
    assert [span.began_at for span in kept.spans] == [reward.last_outcome_at for reward in rewards]
