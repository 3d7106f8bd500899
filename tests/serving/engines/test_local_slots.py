"""The slot that a request gets, compared with a plain search."""

from hypothesis import given, settings
from hypothesis import strategies as st

from core.ids import base_ref
from serving.engines.local.slots import SlotTable

tokens = st.lists(st.integers(0, 1), min_size=1, max_size=24)
left = st.lists(st.tuples(tokens, st.integers(1, 2)), max_size=4)


def common(held: list[int], prompt: list[int]) -> int:
    pairs = enumerate(zip(held, prompt[:-1], strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(held), len(prompt) - 1))


@given(left, tokens, st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_the_longest_prefix_of_the_same_version_wins(
    earlier: list[tuple[list[int], int]], prompt: list[int], version: int
) -> None:
    table = SlotTable(4, 24)
    taken = [table.take([9] * 10, base_ref(3))[0] for _ in range(4)]
    assert sorted(taken) == [0, 1, 2, 3]
    assert table.num_free == 0
    for slot, (held, under) in zip(taken, earlier, strict=False):
        table.release(slot, held, base_ref(under))
    for slot in taken[len(earlier) :]:
        table.release(slot, [], None)
    matches = [common(held, prompt) if under == version else 0 for held, under in earlier]
    longest = max([length for length in matches if length >= 8], default=0)
    slot, cached = table.take(prompt, base_ref(version))
    assert cached == longest
    # Without a match, the slot that was freed first.
    assert slot == taken[matches.index(longest) if longest else 0]


def test_what_was_forgotten_is_not_found() -> None:
    table = SlotTable(2, 24)
    slot, _ = table.take([1] * 20, base_ref(1))
    table.release(slot, [1] * 20, base_ref(1))
    table.forget()
    assert table.num_free == 2
    assert table.take([1] * 20, base_ref(1))[1] == 0
