"""Sets of ids survive being packed, and nothing else is taken for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.grammars.sets import pack, unpack

IDS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=30, unique=True).map(sorted)


@given(st.lists(IDS, max_size=20))
def test_sets_come_back_as_they_were(sets: list[list[int]]) -> None:
    assert unpack(pack(sets)) == sets


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda data: data.decode("latin-1")))
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unpack(text)


def test_a_cut_is_noticed() -> None:
    with pytest.raises(ValueError):
        unpack(pack([[1, 2, 3]])[:-2])


def test_neighbours_cost_little() -> None:
    assert len(pack([list(range(1000))] * 50)) < 2000
