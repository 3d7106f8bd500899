"""Each user's share of an update is bounded, and a user who contradicts everybody soon has no influence."""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle
from pydantic import ValidationError

from core.ids import UserHash
from core.settings import LearnerSettings, UserSettings
from core.settings.names import nested
from learner.objective.influence import _MOST, Influence, _raised, user_of
from learner.objective.trust import Trust
from learner.sequences.scored import ScoredTurn

MakeWorld = Callable[[str], World]


def batch_of(users: list[int | None], worths: list[float] | None = None) -> list[ScoredTurn]:
    turns = [make_turn(n % 3, user_id=None if u is None else UserHash(f"u{u}")) for n, u in enumerate(users)]
    values = worths or [1.0] * len(turns)
    return [ScoredTurn(turn, make_reward(turn, value)) for turn, value in zip(turns, values, strict=True)]


def influences(batch: list[ScoredTurn], settings: Mapping[str, object] = {}) -> list[float]:
    return Influence(UserSettings.model_validate({"share_repeats": False, **settings})).weigh(batch)


def mass_of(batch: list[ScoredTurn], found: list[float]) -> dict[str, float]:
    mass: defaultdict[str, float] = defaultdict(float)
    for scored, influence in zip(batch, found, strict=True):
        mass[user_of(scored)] += influence
    return mass


def bound_of(mass: dict[str, float], share: float) -> float:
    """Return the largest share that one user may have: twice an even one among few users."""
    return max(share, 2 / len(mass))


USERS = st.lists(st.none() | st.integers(0, 50), min_size=2, max_size=60)


@given(users=USERS, share=st.floats(0.05, 1), repeats=st.booleans())
def test_no_user_has_more_than_its_share(users: list[int | None], share: float, repeats: bool) -> None:
    batch = batch_of(users)
    found = influences(batch, {"max_share": share, "share_repeats": repeats})
    assert all(0 < influence <= 2 for influence in found)
    mass = mass_of(batch, found)
    assert all(part <= bound_of(mass, share) * len(batch) + 1e-9 for part in mass.values())
    assert sum(mass.values()) <= len(batch) + 1e-9


@given(users=USERS, share=st.floats(0.05, 1))
def test_what_one_loses_the_others_gain(users: list[int | None], share: float) -> None:
    """Others gain at most twice their share, and at most the bound."""
    batch = batch_of(users)
    found = influences(batch, {"max_share": share})
    if sum(found) < len(batch) - 1e-6:
        spoken, mass = mass_of(batch, [1.0] * len(batch)), mass_of(batch, found)
        assert all(mass[u] == pytest.approx(min(2 * spoken[u], bound_of(mass, share) * len(batch))) for u in mass)


@given(users=USERS)
def test_without_a_bound_all_count_in_full(users: list[int | None]) -> None:
    assert influences(batch_of(users), settings={"max_share": 1}) == [1.0] * len(users)


def test_of_few_users_each_may_be_twice_an_even_share() -> None:
    """The default bound of a twentieth would otherwise halve each of ten equally active users."""
    alike, alone = [*range(10)] * 2, [0] * 8
    uneven = [0, 0, 0, 0, *range(1, 9), *range(2, 10)]  # one says a fifth
    one_of_two = [0] * 19 + [1]
    for users in (alike, alone, uneven, one_of_two):
        assert influences(batch_of(users)) == [1.0] * len(users)
    loud = batch_of([0] * 11 + [*range(1, 10)])  # and one more than half, of ten
    mass = mass_of(loud, influences(loud))
    assert mass[user_of(loud[0])] == pytest.approx(20 / 5)
    assert mass[user_of(loud[-1])] == pytest.approx(16 / 9)


def test_of_forty_users_a_loud_one_is_a_twentieth() -> None:
    """The settings are the defaults."""
    assert influences(batch_of([*range(40)])) == [1.0] * 40
    loud = batch_of([0] * 40 + [*range(1, 41)])
    mass = mass_of(loud, influences(loud))
    assert mass[user_of(loud[0])] == pytest.approx(80 / 20)
    assert mass[user_of(loud[-1])] == pytest.approx(76 / 40)


def test_who_was_heard_lately_is_of_the_crowd() -> None:
    """A user who fills an update alone is bounded by the share of recent users, until they are forgotten."""
    influence = Influence(UserSettings(share_repeats=False))
    crowd, loud = batch_of([*range(40)]), batch_of([99] * 40)
    influence.end(crowd, [0.0] * 40)
    assert influence.weigh(loud)[0] == pytest.approx(76 / 20 / 40)
    for _ in range(60):
        influence.end(loud, [0.0] * 40)
    assert influence.weigh(loud) == [1.0] * 40


def test_the_same_answer_again_counts_once() -> None:
    """The settings are the defaults."""
    batch = batch_of([0, 0, 0, 0, 1])
    assert Influence(UserSettings()).weigh(batch) == [0.5, 1.0, 1.0, 0.5, 1.0]
    assert influences(batch, {"share_repeats": False}) == [1.0] * 5


@pytest.mark.parametrize("settings", [{}, {"max_share": 0.25, "share_repeats": False}, {"distrust": True}])
def test_what_is_void_takes_no_share(settings: dict[str, object]) -> None:
    """It says nothing: neither does it repeat an answer, nor is it part of what its user, or anybody, said."""
    worths = [1.0, -1.0, 1.0, 0.5, -0.5, 1.0]
    plain = batch_of([0, 0, 0, 1, 2, 3], worths)
    gone = [
        ScoredTurn(each.turn, msgspec.structs.replace(each.reward, void=True, value=0.0))
        for each in batch_of([0, 0, 0, 4], [0.0] * 4)
    ]
    kept, found = [], []
    for batch in (plain, [*plain, *gone]):
        influence = Influence(UserSettings.model_validate(settings))
        for _ in range(3):
            found.append(influence.weigh(batch)[: len(plain)])
            influence.end(batch, [0.1 * place for place in range(len(batch))])
        kept.append(influence.state_dict())
    assert kept[0] == kept[1]
    assert found[:3] == found[3:]


def test_a_share_is_one_of_the_last_updates_too() -> None:
    """A user who fills one small update after many of others has still had no larger share than they."""
    influence = Influence(UserSettings(max_share=0.25, share_repeats=False))
    others, loud = batch_of([*range(8)]), batch_of([9, 9])
    for _ in range(10):
        influence.end(others, [0.0] * 8)
    assert influence.weigh(loud) == [1.0, 1.0]
    for _ in range(20):
        influence.end(loud, [0.0] * 2)
    assert influence.weigh(loud)[0] < 0.5


# ------------------------------------------------------------------------------------------------ trust


def test_who_says_the_opposite_of_all_others_is_soon_not_heard() -> None:
    """Users who are merely noisy keep more influence, and so do new users."""
    rng, trust = random.Random(0), Trust()
    for _ in range(40):
        said = []
        for user in range(10):
            good = rng.random() < 0.5
            told = (not good) if user == 0 else (rng.random() < 0.5) if user == 1 else good
            said.append((f"u{user}", float(told), 0.5 * good + rng.gauss(0, 0.2), 1.0))
        trust.hear(said)
    assert trust.of("u0") < 0.05
    assert trust.of("u1") > 2 * trust.of("u0")
    assert all(trust.of(f"u{user}") == 1 for user in range(2, 10))
    assert trust.of("stranger") == 1


def test_while_nothing_is_known_everybody_is_believed() -> None:
    rng, trust = random.Random(0), Trust()
    for _ in range(40):
        trust.hear([(f"u{user}", rng.random(), rng.random(), 1.0) for user in range(10)])
    assert min(trust.of(f"u{user}") for user in range(10)) > 0.5
    trust.hear([])
    trust.hear([("u0", 1.0, 0.5, 1.0)])  # alone it agrees with nobody


def test_a_liar_who_mends_is_believed_again() -> None:
    trust = Trust()
    honest = [(f"u{user}", float(user % 2), float(user % 2), 1.0) for user in range(1, 9)]
    for _ in range(20):
        trust.hear([("u0", 1.0, 0.0, 1.0), *honest])
    assert trust.of("u0") < 0.1
    for _ in range(40):
        trust.hear([("u0", 1.0, 1.0, 1.0), *honest])
    assert trust.of("u0") == 1


def test_what_is_remembered_is_kept_with_the_weights() -> None:
    settings = UserSettings(max_share=0.3, distrust=True)
    one, other = Influence(settings), Influence(settings)
    batch = batch_of([0, 1, 2, 3, 0], [1.0, 0.0, 1.0, 0.0, 0.0])
    for _ in range(20):
        one.end(batch, [0.0, 0.0, 1.0, 0.0, 1.0])
    other.load_state_dict(one.state_dict())
    assert other.weigh(batch) == one.weigh(batch) != Influence(settings).weigh(batch)


def test_few_liars_who_are_loud_are_found_out_and_nobody_else() -> None:
    """Most of what is said are lies. The head learns of good and bad answers what it is told, by influence."""
    rng, influence = random.Random(0), Influence(UserSettings(distrust=True))
    liars, head = range(4), {True: 0.0, False: 0.0}
    for _ in range(60):
        users = rng.choices(range(40), [15.0] * 4 + [1.0] * 36, k=32)
        good = [rng.random() < 0.5 for _ in users]
        batch = batch_of([*users], [float(g != (u in liars)) for g, u in zip(good, users, strict=True)])
        shares = influence.weigh(batch)
        influence.end(batch, [head[each] + rng.gauss(0, 0.2) for each in good])
        for each, scored, share in zip(good, batch, shares, strict=True):
            head[each] += 0.05 * share * (scored.worth - head[each])
    trusted = {user: influence._trust.of(user_of(batch_of([user])[0])) for user in range(40)}
    assert max(trusted[liar] for liar in liars) < 0.05
    assert min(trusted[user] for user in range(4, 40)) > 0.9


def test_distrust_needs_a_value_head() -> None:
    with pytest.raises(ValidationError, match="distrust: needs a value head"):
        LearnerSettings.model_validate(nested({"users.distrust": True, "advantage.baseline": "ema"}))


# ------------------------------------------------------------------------------------------------ in the learner


def test_a_correction_takes_back_what_was_applied(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings={"users.max_share": 0.25})
    past = logged_past(8)
    loud = {turn.inference_id for turn, _ in past[:4]}
    past = [
        (msgspec.structs.replace(turn, user_id=UserHash("loud" if turn.inference_id in loud else f"u{n}")), reward)
        for n, (turn, reward) in enumerate(past)
    ]
    world.tell(*past)
    settle(learner)
    world.tell(*[(turn, make_reward(turn, 0.5, revision=1, after_s=30)) for turn, _ in past])
    settle(learner)
    first, second = manifests(world)
    quiet = next(record.scale for record in first.turns if record.inference_id not in loud)
    before = {record.inference_id: record for record in first.turns}
    for record in first.turns:
        assert record.scale == pytest.approx(quiet * (1.5 if record.inference_id in loud else 1))  # 0.8, 1.2
    for record in second.turns:
        original = before[record.inference_id]
        assert record.scale == original.scale
        assert original.credit + record.credit == pytest.approx(
            (record.reward - original.baseline) / original.scale, rel=1e-5
        )
    published = learner._reliving.published(first.version)
    assert published is not None
    assert published.metrics["limited_turns"] == 4
    learner.close()


def test_users_too_few_for_the_sum_are_raised_as_far_as_anybody() -> None:
    assert _raised([3.0, 0.0], most=1.0, turns=2.0) == _MOST
