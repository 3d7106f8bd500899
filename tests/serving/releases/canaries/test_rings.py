"""Rings: who is in them, what their test lacks, and that nobody leaves them."""

from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import Namespace, base_ref, user_hash
from core.operations.fleet import Assignment, Experiment
from core.settings import CanarySettings, RingSettings
from serving.releases.canaries.assignment import Shares
from serving.releases.canaries.evidence import ArmStatistics
from serving.releases.canaries.rings import Members, by_guards_alone, in_ring, lacking, next_ring, ring_of
from serving.releases.canaries.traffic import Rules
from serving.releases.canaries.verdict import CanaryVerdict, judge

DEFAULT, LAB = Namespace("default"), Namespace("lab")
STAFF = RingSettings(name="staff", users={"default": ("ada", "grace")}, namespaces=("lab",))
EARLY = RingSettings(name="early", share=0.05)
RINGS = (STAFF, EARLY)
hash_of = partial(user_hash, "a key")


def experiment(*rings: str) -> Experiment:
    return Experiment(
        experiment_id="e",
        cluster="local",
        canary=base_ref(2),
        control=base_ref(1),
        share=0.05,
        salt="s",
        started_at=datetime(2026, 3, 1, tzinfo=UTC),
        rings=rings,
    )


# ------------------------------------------------------------------------------------------------ members


def test_a_user_is_known_in_its_own_namespace_alone() -> None:
    """A customer's user who calls herself ada is no member of the staff."""
    members = Members(RINGS, hash_of)
    assert members.rings_of(hash_of(DEFAULT, "ada"), DEFAULT) == {"staff"}
    assert members.rings_of(hash_of(Namespace("acme"), "ada"), Namespace("acme")) == frozenset()
    assert members.rings_of(hash_of(DEFAULT, "eve"), DEFAULT) == frozenset()
    assert members.rings_of("ada", DEFAULT) == frozenset(), "a session of this name is not she"


def test_all_of_a_namespace_are_in_it_with_or_without_a_user() -> None:
    members = Members(RINGS, hash_of)
    assert members.rings_of(hash_of(LAB, "whoever"), LAB) == {"staff"}
    assert members.rings_of("a-session", LAB) == {"staff"}
    assert members.rings_of("a-session", None) == frozenset()


def test_a_user_may_be_named_by_the_hash_that_the_console_shows() -> None:
    shown = hash_of(DEFAULT, "eve")
    assert Members([RingSettings(name="a", users={"default": (shown,)})], hash_of).rings_of(shown, DEFAULT) == {"a"}


def test_two_rings_may_name_one_user() -> None:
    second = RingSettings(name="friends", users={"default": ("ada",)})
    assert Members((STAFF, second), hash_of).rings_of(hash_of(DEFAULT, "ada"), DEFAULT) == {"staff", "friends"}


# ------------------------------------------------------------------------------------------------ one after another


def test_the_next_ring_is_the_first_that_was_not_reached() -> None:
    assert next_ring(RINGS, ()) == STAFF
    assert next_ring(RINGS, ("staff",)) == EARLY
    assert next_ring(RINGS, ("staff", "early")) is None
    assert next_ring(RINGS, ("of before", "early")) == STAFF
    assert next_ring((), ()) is None


def test_the_ring_under_test_is_the_last_that_was_reached() -> None:
    assert ring_of(RINGS, experiment("staff", "early")) == EARLY
    assert ring_of(RINGS, experiment("staff", "of before")) is None


@pytest.mark.parametrize(
    ("sessions", "age_s", "lacks"),
    [
        (19, 1e9, "19 of 20 sessions are decided"),
        (20, 599.0, "599 of 600 s have passed"),
        (20, 600.0, None),
        (21, 601.0, None),
    ],
)
def test_a_ring_lacks_sessions_or_time(sessions: int, age_s: float, lacks: str | None) -> None:
    assert lacking(STAFF, sessions, age_s) == lacks
    verdict = by_guards_alone(sessions, lacks)
    assert verdict.action == ("promote" if lacks is None else "wait")
    assert verdict.figures == {"sessions": sessions}, "and no difference, which the ratchet would add up"


def arm(mean: float, users: int = 50) -> ArmStatistics:
    made = ArmStatistics()
    for number in range(users):
        made.add(f"{number}", mean + (0.01 if number % 2 else -0.01))
    return made


def test_what_lacks_delays_a_promotion_and_no_rollback() -> None:
    better, worse, live = arm(0.6), arm(0.1), arm(0.5)
    assert judge(better, live, 1.0, CanarySettings()).action == "promote"
    waits = judge(better, live, 1.0, CanarySettings(), lacking="1 of 600 s have passed")
    assert (waits.action, waits.why.endswith("; 1 of 600 s have passed")) == ("wait", True)
    assert judge(worse, live, 1.0, CanarySettings(), lacking="1 of 600 s have passed").action == "rollback"
    late = judge(arm(0.5), live, 1e9, CanarySettings(), lacking="19 of 20 sessions are decided")
    assert late.action == "wait", "not even the horizon passes a ring"


def test_a_verdict_says_which_ring_it_is_about() -> None:
    verdict = CanaryVerdict("rollback", "worse", {"turns": 1.0}, base_ref(1))
    said = in_ring(experiment("staff", "early"), verdict)
    assert said == CanaryVerdict("rollback", "ring early: worse", {"turns": 1.0}, base_ref(1))
    assert in_ring(experiment(), verdict) is verdict
    assert in_ring(None, verdict) is verdict
    assert in_ring(experiment("staff"), None) is None


# ------------------------------------------------------------------------------------------------ who has it keeps it

named = st.frozensets(st.sampled_from(["a", "b", "c"]))


@given(st.text(min_size=1), st.text(), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=3, max_size=3), named)
def test_who_has_a_version_keeps_it_from_ring_to_ring(
    unit: str, salt: str, holdback: float, shares: list[float], named_by: frozenset[str]
) -> None:
    arms = [
        rules(salt, holdback, max(shares[: place + 1]), "abc"[: place + 1]).assign(unit, named_by) for place in range(3)
    ]
    for earlier, later in pairwise(arms):
        assert earlier.arm != "canary" or later.arm == "canary"
    if named_by:
        assert "holdback" not in {each.arm for each in arms}, "whom a ring names is never held back"
    for place, each in enumerate(arms):
        if named_by & set("abc"[: place + 1]):
            assert (each.arm, each.propensity, each.version) == ("canary", 1.0, base_ref(2))
        elif each.arm == "canary":
            kept = 0.0 if named_by else holdback
            assert each.propensity == pytest.approx((1 - kept) * max(shares[: place + 1]))


def rules(salt: str, holdback: float, share: float, reached: str) -> Rules:
    arms = {
        "holdback": Assignment(arm="holdback", version=base_ref(1), experiment_id="e"),
        "canary": Assignment(arm="canary", version=base_ref(2), experiment_id="e"),
        "live": Assignment(experiment_id="e"),
    }
    return Rules(Shares(share, holdback, salt, "h"), arms, frozenset(reached))
