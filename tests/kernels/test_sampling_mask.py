"""Packed sets of allowed ids.

Legend: M distinct sets, P words of 32 ids."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onward_kernels import SamplingMask


@given(vocabulary=st.integers(1, 99), data=st.data())
def test_what_is_packed_is_found_again_in_any_window(vocabulary: int, data: st.DataObject) -> None:
    one = st.none() | st.sets(st.integers(0, vocabulary - 1), min_size=1).map(list)
    lists = data.draw(st.lists(one, max_size=7))
    start = data.draw(st.integers(0, vocabulary - 1))
    stop = data.draw(st.integers(start + 1, vocabulary))
    found = SamplingMask.of(lists, vocabulary).allowed(slice(0, len(lists)), slice(start, stop))
    expected = [[ids is None or v in ids for v in range(start, stop)] for ids in lists]
    assert found.tolist() == expected


def test_equal_sets_are_stored_once_and_none_costs_nothing() -> None:
    mask = SamplingMask.of([[3, 1], None, [1, 3, 3], [64]], 65)
    assert mask.set_N.tolist() == [0, -1, 0, 1]
    assert mask.bits_MP.tolist() == [[0b1010, 0, 0], [0, 0, 1]]


def test_the_sign_bit_is_an_id_like_others() -> None:
    mask = SamplingMask.of([[31]], 32)
    assert mask.bits_MP.tolist() == [[-(2**31)]]
    assert mask.allowed(slice(0, 1), slice(0, 32)).nonzero().tolist() == [[0, 31]]


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ([[1], []], "token 1: its mask allows no id"),
        ([[0], [1], [5]], "token 2: its mask allows ids outside the vocabulary of 5"),
        ([[-1]], "token 0: its mask allows ids outside the vocabulary of 5"),
    ],
)
def test_lists_that_make_no_sense_are_refused(lists: list[list[int]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SamplingMask.of(lists, 5)


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (SamplingMask.of([None, [1, 2], [0, 3]], 40), "token 2: its mask does not allow its target, 4"),
        (
            SamplingMask(torch.tensor([[1, 0], [0, 1 << 9]]).int(), torch.tensor([0, 1, -1])),
            "token 1: its mask allows no",
        ),
        (SamplingMask.of([None, None], 40), "the mask is for 2 tokens, but there are 3"),
        (SamplingMask.of([None, None, [4]], 32), "not int32 words of a vocabulary of 40"),
        (SamplingMask(torch.ones(1, 2), torch.zeros(3).long()), "not int32 words of a vocabulary of 40"),
        (SamplingMask(torch.ones(1, 2).int(), torch.tensor([0, 1, 0])), "the mask has 1 sets, but set_N names others"),
        (SamplingMask(torch.ones(1, 2).int(), torch.tensor([0, -2, 0])), "the mask has 1 sets, but set_N names others"),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask: SamplingMask, told: str) -> None:
    """Bits past the vocabulary allow nothing: the second mask's only bit is id 41."""
    with pytest.raises(ValueError, match=told):
        mask.check(torch.tensor([0, 1, 4]), 40)
