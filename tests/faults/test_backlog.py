"""Scorers that were suspended while events came."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fault_counts import settle
from fault_table import IS_FULL, FaultTable
from fault_users import Users
from fault_world import World
from made_turns import another, append, judgement, real_turn
from service_tree import wait_for
from sqlalchemy import select

from bench.table import Row
from core.events import Completion, Event
from core.ids import InferenceId, SessionId, new_session_id
from core.store.database import tables

pytestmark = pytest.mark.timeout(1800)
_EVENTS = 100_000 if IS_FULL else 5_000
_TURNS = 5  # of a session; each is judged
_MIB = 1 << 20
_MOST_MIB = 128  # by which a scorer may grow


def test_scorers_catch_up(world: World, users: Users, table: FaultTable) -> None:
    """Each session's events are scored in order, within bounded memory."""
    users.wait_for_more(1)
    sessions = make_sessions(real_turn(world, users.turns[0]))
    ids = [turn.inference_id for turns in sessions.values() for turn in turns]
    with standing_still(world) as before:
        append(world, in_turns(list(sessions.values())))
        assert not rewarded(world, ids[:100])
    peak = 0

    def caught_up() -> bool:
        nonlocal peak
        peak = max(peak, *(growth(world, name, before[name]) for name in before))
        return count_rewarded(world, sessions) == len(ids)

    wait_for(caught_up, 900, f"the rewards of {len(ids)} turns")
    order = rewarded(world, ids)
    fault = f"scorers stopped for {_EVENTS} events"
    disordered = sum(order[session] != [turn.inference_id for turn in sessions[session]] for session in sessions)
    table.add(
        fault,
        settle(world, users),
        Row(f"{fault}: sessions out of order", disordered, f"of {len(sessions)}", goal=0, holds=disordered == 0),
        Row(f"{fault}: growth of a scorer", peak / _MIB, "MiB", goal=_MOST_MIB, holds=peak < _MOST_MIB * _MIB),
    )
    assert disordered == 0
    assert peak < _MOST_MIB * _MIB


@contextmanager
def standing_still(world: World) -> Iterator[dict[str, int]]:
    """Suspend all scorers; yield their resident bytes."""
    scorers = {name: world.process(name) for name in world.names("score")}
    for scorer in scorers.values():
        scorer.suspend()
    try:
        yield {name: scorer.memory_info().rss for name, scorer in scorers.items()}
    finally:
        for scorer in scorers.values():
            scorer.resume()


def growth(world: World, name: str, before: int) -> int:
    return int(world.process(name).memory_info().rss) - before


def make_sessions(model: Completion) -> dict[SessionId, list[Completion]]:
    made: dict[SessionId, list[Completion]] = {}
    for _ in range(_EVENTS // (2 * _TURNS)):
        session_id = new_session_id()
        made[session_id] = [another(model, learns=False, session_id=session_id) for _ in range(_TURNS)]
    return made


def in_turns(sessions: list[list[Completion]]) -> list[Event]:
    """Return all sessions' first turns, each with its outcome, then their second ones, and so on."""
    return [event for number in range(_TURNS) for turns in sessions for event in judged(turns[number])]


def judged(turn: Completion) -> list[Event]:
    return [turn, judgement(turn)]


def rewarded(world: World, ids: list[InferenceId]) -> dict[SessionId, list[InferenceId]]:
    """Return each session's rewarded turns, in order of emission."""
    wanted, found, table = set(ids), defaultdict(list), tables.rewards
    with world.foundation.store.read() as connection:
        for row in connection.execute(select(table.c.session_id, table.c.inference_id).order_by(table.c.sequence)):
            if row.inference_id in wanted:
                found[SessionId(row.session_id)].append(InferenceId(row.inference_id))
    return dict(found)


def count_rewarded(world: World, sessions: dict[SessionId, list[Completion]]) -> int:
    table = tables.rewards
    with world.foundation.store.read() as connection:
        rows = connection.execute(select(table.c.session_id))
        return sum(1 for row in rows if row.session_id in sessions)
