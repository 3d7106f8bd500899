"""Properties of stop strings and live state."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.live_state.memory import MemoryLiveState
from api.live_state.recent import bytes_of
from api.requests.stops import StopCutter, _Stop
from core.ids import InferenceId, Namespace, SessionId
from core.ports import TokenChain

MOST = 4_000
TEXT = st.text(alphabet="abc", max_size=20)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), max_size=4)


def cut(text: str, stops: list[str]) -> str:
    """Return the text before the first stop string that is complete, by its definition."""
    for end in range(len(text) + 1):
        places = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if places:
            return text[: min(places)]
    return text


@given(pieces=st.lists(TEXT, max_size=6), stops=STOPS)
def test_pieces_do_not_matter_and_no_part_of_a_stop_string_leaves(pieces: list[str], stops: list[str]) -> None:
    text, cutter = "".join(pieces), StopCutter(stops)
    by_letter = StopCutter(stops)
    expected = "".join(by_letter.feed(letter) for letter in text) + by_letter.finish()
    assert expected == cut(text, stops)
    out = [cutter.feed(piece) for piece in pieces]
    assert "".join(out) + cutter.finish() in {text[: text.find(stop)] for stop in stops} | {expected}
    assert cutter.stopped == any(stop in text for stop in stops)
    sent = ""
    for piece in out:
        sent += piece
        assert not any(stop in sent for stop in stops)


def test_what_is_held_back_for_long_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a long text held back each further token took a time with its square, and all others waited."""
    read, steps = _Stop._after, 0

    def count(stop: _Stop, begun: int, character: str) -> int:
        nonlocal steps
        steps += 1
        return read(stop, begun, character)

    monkeypatch.setattr(_Stop, "_after", count)
    cutter = StopCutter(["a" * 5_000, "b" * 9_000, "ab" * 4_500])
    assert "".join(cutter.feed("a") for _ in range(4_000)) == ""
    assert cutter.feed("c" + "a" * 999) == "a" * 4_000 + "c"
    assert cutter.finish() == "a" * 999
    assert 5_000 <= steps <= 6 * 5_000  # a step for each character and stop string, and one to learn each beginning


def chain(number: int, tokens: int) -> TokenChain:
    return TokenChain(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId("s"),
        turn_index=0,
        num_messages=2,
        token_ids=tuple(range(tokens)),
    )


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_live_state_is_bounded_and_forgets_the_oldest(sizes: list[int]) -> None:
    async def scenario() -> None:
        state, namespace = MemoryLiveState(max_chain_bytes=MOST), Namespace("n")
        for number, size in enumerate(sizes):
            await state.put_chain(namespace, [str(number)], chain(number, size))
        kept = [n for n in range(len(sizes)) if await state.get_chain(namespace, [str(n)]) is not None]
        assert kept == list(range(kept[0], len(sizes)))
        assert sum(36 * sizes[n] + bytes_of(str(n)) for n in kept) <= MOST or len(kept) == 1
        assert await state.get_chain(Namespace("other"), [str(kept[-1])]) is None

    asyncio.run(scenario())
