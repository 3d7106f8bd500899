"""Turns that are gone from the store are unlearned where their rewards say that they are meant, and else counted."""

from collections.abc import Callable

import pytest
from excluded_users import USUAL, came_of, exclude, rounds, teach, trained_on
from logged_world import World, settle
from sqlalchemy import delete

from core.ids import base_ref
from core.store.database import tables

MakeWorld = Callable[[str], World]


@pytest.mark.parametrize(("by", "unknown"), [("turn", 0), ("user", 1)])
def test_what_is_gone_is_found_by_its_name_and_counted_where_its_user_is_asked_for(
    make_world: MakeWorld, by: str, unknown: int
) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    past = rounds()[:2]
    teach(world, learner, past)
    gone = past[1][2][0]  # of Mallory, as another one of version 3
    with world.store.begin() as connection:
        connection.execute(delete(tables.turns).where(tables.turns.c.inference_id == gone.inference_id))
    number = exclude(world, users=(), turns=(gone.inference_id,)) if by == "turn" else exclude(world)
    settle(learner)
    learner.close()
    told = came_of(world, number)
    assert (told.first_use, told.start, told.unknown) == (base_ref(3), base_ref(2), unknown)
    assert gone.inference_id not in trained_on(world)
