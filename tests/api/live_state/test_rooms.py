"""Whoever makes many claims crowds nobody else's out, and what makes a name ambiguous is forgotten last."""

import asyncio

from api.live_state.memory import MemoryLiveState
from api.live_state.recent import bytes_of
from api.live_state.rooms import Rooms
from core.ids import InferenceId, Namespace, SessionId

OURS, THEIRS = Namespace("ours"), Namespace("theirs")


def test_the_heaviest_room_gives_way() -> None:
    rooms: Rooms[int] = Rooms(max_weight=4)
    for number in range(2):
        rooms.put("small", number, number, 1)
    for number in range(10):
        rooms.put("large", number, number, 1)
    assert [rooms.get("small", number) for number in range(2)] == [0, 1]
    assert [rooms.get("large", number) for number in range(10)] == [*[None] * 8, 8, 9]


def test_of_a_room_what_was_used_last_stays() -> None:
    rooms: Rooms[int] = Rooms(max_weight=2)
    rooms.put("a", "first", 1, 1)
    rooms.put("a", "second", 2, 1)
    assert rooms.get("a", "first") == 1
    rooms.put("a", "third", 3, 1)
    assert (rooms.get("a", "first"), rooms.get("a", "second")) == (1, None)
    rooms.drop("a", "first")
    rooms.put("a", "fourth", 4, 1)
    assert (rooms.get("a", "third"), rooms.get("a", "fourth")) == (3, 4)


def test_links_of_one_crowd_out_no_claims_of_others() -> None:
    async def main() -> list[str | None]:
        state = MemoryLiveState(max_bytes=12 * bytes_of("link:\0bob\0 0", "answer"))
        for namespace in (OURS, THEIRS):
            await state.claim(namespace, "child:turn", "group")
            await state.claim(namespace, "link:\0ada\0name", "answer")
        for number in range(100):
            await state.claim(OURS, f"link:\0bob\0{number}", "answer")
        claims = (OURS, "child:turn"), (THEIRS, "child:turn"), (THEIRS, "link:\0ada\0name"), (OURS, "link:\0ada\0name")
        return [await state.claim_of(*claim) for claim in claims]

    assert asyncio.run(main()) == ["group", "group", "answer", None]


def test_names_take_no_more_memory_for_being_long() -> None:
    """A bound on bytes holds; a hundred of them would take ten times as much."""

    async def main() -> tuple[list[int], list[bool]]:
        state, names = MemoryLiveState(max_bytes=100_000), [f"{number}" * 5_000 for number in range(10, 110)]
        for name in names:
            await state.claim(OURS, f"link:{name}", "answer")
            await state.put_inference(OURS, InferenceId(name), SessionId("s"))
            await state.put_inference(OURS, InferenceId("i"), SessionId(name))
        claims = [await state.claim_of(OURS, f"link:{name}") is not None for name in names]
        inferences = [await state.get_session(OURS, InferenceId(name)) is not None for name in names]
        sessions = [await state.has_session(OURS, SessionId(name)) for name in names]
        return [sum(claims), sum(inferences), sum(sessions)], [claims[-1], inferences[-1], sessions[-1]]

    kept, newest = asyncio.run(main())
    assert max(kept) <= 10
    assert all(newest)
