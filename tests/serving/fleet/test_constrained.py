"""An answer of a remote engine is followed by its grammar: masks are recorded, and strange tokens noticed."""

import asyncio
from pathlib import Path

import pytest

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.library import grammars_of
from core.grammars.masks import Masks
from core.ids import base_ref
from core.ports import TokenChunk
from serving.fleet.constrained import Followed

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
STOPS = (2, 0)
GRAMMAR = Grammar(text='start: "ab" | "ac"')
GRAMMARS = grammars_of(TINY)


def token(text: str) -> int:
    (found,) = GRAMMARS.tokenizer(STOPS).tokenize_str(text)
    return int(found)


def followed(*chunks: tuple[int, ...], grammar: Grammar = GRAMMAR) -> list[TokenChunk]:
    async def run() -> list[TokenChunk]:
        answer = await Followed.begin(GRAMMARS, grammar, STOPS)
        return [
            await answer.take(TokenChunk(token_ids=ids, logprobs=(-0.5,) * len(ids), version=base_ref(1)))
            for ids in chunks
        ]

    return asyncio.run(run())


def test_each_chunk_has_the_record_of_all_masks_so_far() -> None:
    masks = Masks(GRAMMARS, GRAMMAR, STOPS)
    expected = []
    for each in (token("a"), token("b"), 2):
        masks.take(each)
        expected.append(masks.record())
    apart = followed((token("a"),), (token("b"),), (2,))
    assert [chunk.grammar for chunk in apart] == expected
    assert followed((token("a"), token("b"), 2))[0].grammar == expected[-1]
    assert all(chunk.untrainable_reasons == () for chunk in apart)


@pytest.mark.parametrize("strange", [(token("x"),), (token("a"), 2), (token("a"), token("b"), 2, token("a"))])
def test_a_token_that_its_mask_does_not_allow_makes_the_turn_untrainable(strange: tuple[int, ...]) -> None:
    first, then = followed(strange, (token("b"),))
    assert first.untrainable_reasons == then.untrainable_reasons == ("other_masks",)


def test_what_is_no_grammar_is_refused_before_an_engine_is_asked() -> None:
    with pytest.raises(InvalidRequest):
        followed((1,), grammar=Grammar(text="start: nowhere"))
