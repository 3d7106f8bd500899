"""Events that are delivered twice or in the wrong order."""

import random
import threading
from collections import Counter

import pytest
from fault_counts import settle
from fault_table import IS_FULL, FaultTable
from fault_users import Users
from fault_world import World
from made_turns import another, append, judgement, real_turn
from service_tree import wait_for
from stage_processes import ask

from bench.table import Row
from core.events import Event, Reward
from core.ids import InferenceId

pytestmark = pytest.mark.timeout(1800)
_TURNS = 2000 if IS_FULL else 100
_RETRIES = 4


def test_events_come_twice_and_outcomes_before_their_turns(world: World, users: Users, table: FaultTable) -> None:
    users.wait_for_more(1)
    model, chance = real_turn(world, users.turns[0]), random.Random(0)
    turns = [another(model, learns=False) for _ in range(_TURNS)]
    outcomes = [judgement(turn) for turn in turns]
    events: list[Event] = [*turns, *turns, *outcomes, *outcomes]
    chance.shuffle(events)
    append(world, events)
    ids = [turn.inference_id for turn in turns]
    wait_for(lambda: len(rewards_of(world, ids)) >= _TURNS, 300, "their rewards")
    tally = settle(world, users)
    with world.foundation.store.look() as view:
        stored = len(view.turns.get_many(ids)), len(view.outcomes.of_turns(ids))
    again, lost = len(rewards_of(world, ids)) - _TURNS, 2 * _TURNS - sum(stored)
    fault = "events twice and in any order"
    table.add(
        fault,
        tally,
        Row(f"{fault}: made turns lost", lost, f"of {_TURNS}, and their outcomes", goal=0, holds=lost == 0),
        Row(f"{fault}: made turns rewarded twice", again, f"of {_TURNS}", goal=0, holds=again == 0),
    )
    assert stored == (_TURNS, _TURNS)
    assert again == 0


def rewards_of(world: World, ids: list[InferenceId]) -> list[Reward]:
    with world.foundation.store.look() as view:
        return view.rewards.of_turns(ids)


def test_a_judgement_is_repeated_at_all_replicas_at_once(world: World, users: Users, table: FaultTable) -> None:
    """Every replica returns the same id for the same content, and the outcome counts once."""
    users.wait_for_more(_TURNS // 10)
    users.leave()
    chosen = users.turns[-_TURNS // 10 :]
    answers: list[str] = []

    def repeat(inference_id: InferenceId, url: str) -> None:
        outcome = {"inference_id": inference_id, "metric_name": "tests_passed", "value": True}
        body = outcome | {"feedback_id": f"again-{inference_id}"}
        answers.append(ask(f"{url}/v1/feedback", body)["feedback_id"])

    for inference_id in chosen:
        threads = [
            threading.Thread(target=repeat, args=(inference_id, world.urls[number % len(world.urls)]))
            for number in range(_RETRIES)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(set(answers)) == sorted({f"again-{one}" for one in chosen})
    assert len(answers) == _RETRIES * len(chosen)
    said = {f"again-{one}": one for one in chosen}
    users.outcomes |= said
    with Users(world.urls) as more:  # without people the learner waits for a batch
        more.wait_for_more(1)
        tally = settle(world, users)
    with world.foundation.store.look() as view:
        stored = Counter(outcome.outcome_id for outcome in view.outcomes.of_turns(chosen))
    counted = [reward.outcome_ids for reward in rewards_of(world, chosen)]
    assert all(stored[one] == 1 for one in said)
    assert all(len(set(ids)) == len(ids) for ids in counted)
    table.add(f"feedback repeated {_RETRIES} times at once", tally)
