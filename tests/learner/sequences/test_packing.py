"""Packed rows hold every example once, and the model cannot tell that an example has neighbours."""

from pathlib import Path

import pytest
import torch
from corpora import read_corpus
from hypothesis import given
from hypothesis import strategies as st
from logged_world import MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer

from learner.midtraining.corpus import encode
from learner.midtraining.run import token_losses, weighted_mean
from learner.sequences.packing import Example, pack, to_tensors
from simulator.tasks.corpus import write_corpus

ROW = 24


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    lengths = draw(st.lists(st.integers(1, ROW), max_size=60))
    return lengths, draw(st.permutations(range(len(lengths))))


@given(packings())
def test_every_example_stands_in_one_row_that_holds_it(packing: tuple[list[int], list[int]]) -> None:
    lengths, order = packing
    rows = pack(lengths, order, ROW)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(row and sum(lengths[index] for index in row) <= ROW for row in rows)
    assert rows == pack(lengths, order, ROW)


@given(packings())
def test_examples_do_not_wait_where_there_was_room(packing: tuple[list[int], list[int]]) -> None:
    """First fit: while there are few rows, no two of them would fit into one."""
    lengths, order = packing
    sizes = [sum(lengths[index] for index in row) for row in pack(lengths, order, ROW)][:16]
    assert sum(size <= ROW // 2 for size in sizes) <= 1


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3))
def test_tensors_keep_examples_apart(lengths: list[list[int]]) -> None:
    """Positions restart, attention ends at the example's first token, and nothing predicts that token."""
    rows = [[Example([7] * size, [0.5] * size) for size in row] for row in lengths]
    packed = to_tensors(rows, ROW, pad_id=3)
    for row, sizes in enumerate(lengths):
        start = 0
        for size in sizes:
            places = range(start, start + size)
            assert packed.ids_RT[row, start : start + size].tolist() == [7] * size
            assert packed.positions_RT[row, start : start + size].tolist() == list(range(size))
            assert packed.weights_RT[row, start : start + size].tolist() == [0.0] + [0.5] * (size - 1)
            for place in places:
                seen = packed.mask_R1TT[row, 0, place].nonzero().flatten().tolist()
                assert seen == list(range(start, place + 1))
            start += size
        assert packed.ids_RT[row, start:].tolist() == [3] * (ROW - start)
        assert not packed.weights_RT[row, start:].any()


def test_the_packed_loss_is_that_of_the_examples_alone(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_corpus(tmp_path, 24, seed=2)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    examples = [encode(tokenizer, document, where) for where, document in read_corpus(tmp_path)]
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    row_tokens = 256
    rows = pack([len(example.token_ids) for example in examples], range(len(examples)), row_tokens)
    assert max(len(row) for row in rows) > 1, "else nothing is packed"
    total, weight = 0.0, 0.0
    with torch.inference_mode():
        batch = to_tensors([[examples[i] for i in row] for row in rows], row_tokens, 3)
        packed = weighted_mean(token_losses(model, batch), batch)
        for example in examples:
            ids, weights = torch.tensor([example.token_ids]), torch.tensor(example.weights[1:])
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            losses = -logprobs[torch.arange(len(weights)), ids[0, 1:]]
            total, weight = total + float((losses * weights).sum()), weight + float(weights.sum())
    assert float(packed) == pytest.approx(total / weight, rel=1e-5)
