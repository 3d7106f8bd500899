"""A turn that is not stored keeps only fields that are listed by name."""

import msgspec
import pytest

from bench.log.traffic import one_turn
from core.events import Completion, Grammar, GrammarMasks, LogprobSpace
from core.ids import UserHash, new_session_id
from core.unstored import KEPT, without_words

MADE_ANEW = {"logprob_space", "sampling", "tags", "trainable", "untrainable_reasons", "unstored"}
EMPTY = {
    "messages": (),
    "prompt_token_ids": (),
    "token_ids": (),
    "logprobs": (),
    "tool_calls": (),
    "attachments": {},
}


def test_a_field_is_kept_by_name_or_empty() -> None:
    said = {"text": "words", "attachments": {"a": "b"}, "transcript_digest": "d" * 32}
    turn = msgspec.structs.replace(one_turn(new_session_id()), **said)
    rests = without_words(turn)
    for field in msgspec.structs.fields(Completion):
        if field.name in KEPT:
            assert getattr(rests, field.name) == getattr(turn, field.name)
        elif field.name not in MADE_ANEW:
            assert getattr(rests, field.name) == EMPTY.get(field.name, field.default), field.name


@pytest.mark.parametrize(("value", "rests"), [("shown", {"reports": "shown"}), ("words", {})])
def test_of_the_tags_rests_what_a_client_always_reports(value: str, rests: dict[str, str]) -> None:
    turn = msgspec.structs.replace(one_turn(new_session_id()), tags={"a": "b", "reports": value})
    assert without_words(turn).tags == rests


def test_of_the_sampling_numbers_rest() -> None:
    turn = one_turn(new_session_id())
    grammar = Grammar(text='start: "words"')
    asked = msgspec.structs.replace(
        turn.sampling, temperature=0.5, stop=("words",), logit_bias={7: 1.0}, seed=12, grammar=grammar
    )
    rests = without_words(msgspec.structs.replace(turn, sampling=asked)).sampling
    assert (rests.temperature, rests.stop, rests.logit_bias, rests.seed) == (0.5, (), None, None)
    assert rests.grammar is None


def test_of_the_masks_nothing_rests() -> None:
    masks = GrammarMasks(library="l", version="1", vocabulary=9, stop_token_ids=(1,), digest="d")
    space = LogprobSpace(temperature=0.5, mask="sampling_sets", grammar=masks)
    turn = msgspec.structs.replace(one_turn(new_session_id()), logprob_space=space)
    assert without_words(turn).logprob_space == LogprobSpace(temperature=0.5)


def test_it_says_so_once_and_never_trains() -> None:
    turn = without_words(one_turn(new_session_id()))
    assert (turn.trainable, turn.untrainable_reasons) == (False, ("not_stored",))
    again = msgspec.structs.replace(turn, untrainable_reasons=("top_p", "not_stored"))
    assert without_words(again).untrainable_reasons == ("top_p", "not_stored")


def test_its_key_rests() -> None:
    turn = msgspec.structs.replace(one_turn(new_session_id()), user_id=UserHash("of-ada"), key_id="editor")
    rests = without_words(turn)
    assert (rests.user_id, rests.key_id) == ("of-ada", "editor")
