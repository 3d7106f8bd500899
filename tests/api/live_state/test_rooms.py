"""Whoever makes many claims crowds nobody else's out, and what makes a name ambiguous is forgotten last."""

import asyncio

from api.live_state.memory import MemoryLiveState
from api.live_state.rooms import Rooms
from core.ids import Namespace

OURS, THEIRS = Namespace("ours"), Namespace("theirs")


def test_the_fullest_room_gives_way() -> None:
    rooms: Rooms[int] = Rooms(max_entries=4)
    for number in range(2):
        rooms.put("small", number, number)
    for number in range(10):
        rooms.put("large", number, number)
    assert [rooms.get("small", number) for number in range(2)] == [0, 1]
    assert [rooms.get("large", number) for number in range(10)] == [*[None] * 8, 8, 9]


def test_of_a_room_what_was_used_last_stays() -> None:
    rooms: Rooms[int] = Rooms(max_entries=2)
    rooms.put("a", "first", 1)
    rooms.put("a", "second", 2)
    assert rooms.get("a", "first") == 1
    rooms.put("a", "third", 3)
    assert (rooms.get("a", "first"), rooms.get("a", "second")) == (1, None)
    rooms.drop("a", "first")
    rooms.put("a", "fourth", 4)
    assert (rooms.get("a", "third"), rooms.get("a", "fourth")) == (3, 4)


def test_links_of_one_crowd_out_no_claims_of_others() -> None:
    async def main() -> list[str | None]:
        state = MemoryLiveState(max_entries=12)
        for namespace in (OURS, THEIRS):
            await state.claim(namespace, "child:turn", "group")
            await state.claim(namespace, "link:\0ada\0name", "answer")
        for number in range(100):
            await state.claim(OURS, f"link:\0bob\0{number}", "answer")
        claims = (OURS, "child:turn"), (THEIRS, "child:turn"), (THEIRS, "link:\0ada\0name"), (OURS, "link:\0ada\0name")
        return [await state.claim_of(*claim) for claim in claims]

    assert asyncio.run(main()) == ["group", "group", "answer", None]
