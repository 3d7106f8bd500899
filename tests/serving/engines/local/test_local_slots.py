"""The slot that a request gets, and what is known of its prompt, compared with a plain search."""

from hypothesis import given, settings
from hypothesis import strategies as st

from core.ids import base_ref
from serving.engines.local.slots import SlotAssignment, SlotTable, Under

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=24)
unders = st.tuples(st.integers(1, 2).map(base_ref), st.sampled_from([None, "ada", "bob"]))
left = st.lists(st.tuples(tokens, unders, st.booleans()), min_size=1, max_size=3)
SLOTS, UNDER = 4, (base_ref(1), "ada")


def common(held: list[int], prompt: list[int]) -> int:
    pairs = enumerate(zip(held, prompt[:-1], strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(held), len(prompt) - 1))


def full(earlier: list[tuple[list[int], Under, bool]]) -> SlotTable:
    """Return a table whose first slots hold what is given, some of them still running, and whose others are free."""
    table = SlotTable(SLOTS, 24)
    assert sorted(table.take([9] * 10, (base_ref(3), None)).slot for _ in range(SLOTS)) == list(range(SLOTS))
    assert table.num_free == 0
    for slot, (held, under, runs) in enumerate(earlier):
        (table.share if runs else table.release)(slot, held, under)
    for slot in range(len(earlier), SLOTS):
        table.release(slot, [], (None, None))
    return table


@given(left, tokens, unders)
@settings(max_examples=300, deadline=None)
def test_the_longest_prefix_of_the_same_version_and_scope_is_gone_on_from(
    earlier: list[tuple[list[int], Under, bool]], prompt: list[int], wanted: Under
) -> None:
    matches = [common(held, prompt) if under == wanted else 0 for held, under, _ in earlier]
    longest = max([length for length in matches if length >= 8], default=0)
    place = full(earlier).take(prompt, wanted)
    assert place.cached == longest
    free = [slot for slot, (_, _, runs) in enumerate(earlier) if not runs]
    first_freed = [*free, *range(len(earlier), SLOTS)]
    assert place.slot in first_freed
    if not longest:
        assert place == SlotAssignment(first_freed[0], 0, first_freed[0])
        return
    assert matches[place.source] == longest
    if place.source == place.slot:
        assert len(earlier[place.source][0]) - longest <= 8, "a longer conversation is left to who continues it"
    else:
        assert place.slot == next(slot for slot in first_freed if slot != place.source)


def test_the_only_free_slot_is_used_even_if_it_holds_more() -> None:
    table = SlotTable(1, 24)
    table.release(table.take([1], UNDER).slot, [1] * 20, UNDER)
    assert table.take([1] * 10 + [2, 2], UNDER) == SlotAssignment(0, 10, 0)


def test_who_is_computed_anew_is_gone_on_from_by_nobody() -> None:
    table = SlotTable(2, 24)
    running = table.take([1] * 20, UNDER).slot
    assert not table.is_shared(running)
    table.share(running, [1] * 20, UNDER)
    assert table.is_shared(running)
    table.unshare(running)
    assert table.take([1] * 20, UNDER).cached == 0


def test_what_was_forgotten_is_not_found() -> None:
    table = SlotTable(2, 24)
    slot = table.take([1] * 20, UNDER).slot
    table.release(slot, [1] * 20, UNDER)
    table.forget()
    assert table.num_free == 2
    assert table.take([1] * 20, UNDER).cached == 0
