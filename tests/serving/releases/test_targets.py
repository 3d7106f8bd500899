"""Intent becomes targets: users always have a live lane, and nothing moves without need."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import base_ref
from core.operations.fleet import ReplicaStatus, ReplicaTarget
from serving.releases.targets import Intent, can_split, leaves_users, plan

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ONE, TWO, THREE = base_ref(1), base_ref(2), base_ref(3)


def replica(name: str, serving: int | None = 1, *, many: bool = False, refused: tuple[int, ...] = ()) -> ReplicaStatus:
    return ReplicaStatus(
        name=name,
        cluster="local",
        url="",
        state="ready",
        serving=None if serving is None else base_ref(serving),
        holds_many=many,
        refused={base_ref(version): "bad" for version in refused},
        heartbeat_at=NOW,
    )


def fleet_of(count: int) -> list[ReplicaStatus]:
    return [replica(f"engine-{place}") for place in range(count)]


def test_an_engine_of_many_versions_serves_every_arm() -> None:
    intent = Intent(serve=TWO, canary=THREE, canary_share=0.2, holdback=ONE, hold=frozenset({TWO}))
    assert plan([replica("local", many=True)], {}, intent) == {
        "local": ReplicaTarget(name="local", lane="live", serve=TWO, hold=(ONE, TWO, THREE))
    }


def test_a_single_engine_has_no_canary() -> None:
    assert not can_split(fleet_of(1))
    planned = plan(fleet_of(1), {}, Intent(serve=ONE, canary=TWO, canary_share=0.2, holdback=THREE))
    assert [(t.lane, t.serve) for t in planned.values()] == [("live", ONE)]


@given(count=st.integers(2, 9), share=st.floats(0.01, 0.99), holdback=st.booleans(), old=st.permutations(range(9)))
def test_lanes(count: int, share: float, holdback: bool, old: list[int]) -> None:
    """Both lanes have an engine at least; engines keep their lanes; planning again changes nothing."""
    fleet = fleet_of(count)
    intent = Intent(serve=ONE, canary=TWO, canary_share=share, holdback=THREE if holdback else None)
    was = old[0] % count
    current = {f"engine-{was}": ReplicaTarget(name=f"engine-{was}", lane="canary", serve=TWO, hold=(TWO,))}
    planned = plan(fleet, current, intent)
    lanes = [target.lane for target in planned.values()]
    assert lanes.count("canary") == min(count - 1, max(1, int(share * count + 0.5)))
    assert lanes.count("live") >= 1
    assert lanes.count("holdback") == (1 if holdback and count - lanes.count("canary") > 1 else 0)
    assert planned[f"engine-{was}"].lane == "canary"
    assert plan(fleet, planned, intent) == planned
    for target in planned.values():
        assert target.serve == {"live": ONE, "canary": TWO, "holdback": THREE}[target.lane]
        assert target.serve in target.hold


@pytest.mark.parametrize(
    ("serving", "holdback", "holds"),
    [
        ([1, 1], False, True),
        ([None, 1], False, False),
        ([1, None], False, True),
        ([1, 1], True, True),
        ([None, None, 1], False, False),
        ([None, 1, 1], True, False),
        ([None], False, False),
    ],
)
def test_users_are_left_an_engine_that_serves(serving: list[int | None], holdback: bool, holds: bool) -> None:
    """The last engine is the canary's; the one before it is held back if another is left."""
    replicas = [replica(f"engine-{place}", version) for place, version in enumerate(serving)]
    intent = Intent(serve=ONE, canary=TWO, holdback=ONE if holdback else None)
    assert leaves_users(replicas, {}, intent) is holds
    assert leaves_users([replica("local", many=True), *replicas], {}, intent)


def test_the_live_lane_turns_replica_by_replica() -> None:
    intent = Intent(serve=TWO, one_by_one=True)
    targets = plan(fleet_of(3), {}, Intent(serve=ONE))
    order = []
    for _ in range(6):
        targets = plan([replica(name, t.serve.version) for name, t in targets.items()], targets, intent)
        order.append([t.serve for t in targets.values()])
    assert order[:3] == [[TWO, ONE, ONE], [TWO, TWO, ONE], [TWO, TWO, TWO]]
    assert order[3:] == [[TWO, TWO, TWO]] * 3


def test_the_next_waits_for_the_one_that_turns() -> None:
    targets = plan(fleet_of(2), plan(fleet_of(2), {}, Intent(serve=ONE)), Intent(serve=TWO, one_by_one=True))
    assert [t.serve for t in plan(fleet_of(2), targets, Intent(serve=TWO, one_by_one=True)).values()] == [TWO, ONE]
    swapping = [replica("engine-0", None), replica("engine-1", 1)]
    assert [t.serve for t in plan(swapping, targets, Intent(serve=TWO, one_by_one=True)).values()] == [TWO, ONE]


def test_a_rollback_turns_all_at_once_and_names_what_to_avoid() -> None:
    targets = plan(fleet_of(3), {}, Intent(serve=TWO))
    planned = plan(fleet_of(3), targets, Intent(serve=ONE, avoid=frozenset({TWO})))
    assert {t.serve for t in planned.values()} == {ONE}
    assert {t.avoid for t in planned.values()} == {(TWO,)}


def test_a_new_replica_gets_what_is_released() -> None:
    targets = plan(fleet_of(1), {}, Intent(serve=ONE))
    planned = plan([*fleet_of(1), replica("late", None)], targets, Intent(serve=ONE))
    assert planned["late"].serve == ONE
