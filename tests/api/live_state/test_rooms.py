"""Whoever makes many claims crowds nobody else's out, and what makes a name ambiguous is forgotten last."""

import asyncio

from api.live_state.memory import MemoryLiveState, Rooms
from api.live_state.recent import bytes_of
from core.ids import InferenceId, Namespace, SessionId
from core.ports import TokenChain

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


def test_what_one_namespace_says_crowds_out_nothing_of_another() -> None:
    """What live state alone knows, a rewritten history's marks and an answer on its way to the store, would be lost."""

    async def main() -> list[bool]:
        state = MemoryLiveState(max_bytes=10_000, max_chain_bytes=10_000)
        await state.put_chain(THEIRS, ["mark"], chain("theirs"))
        for number in range(100):
            await state.put_chain(OURS, [f"mark {number}"], chain(f"{number}"))
        known = [
            (
                await state.get_chain(namespace, [f"mark{name}"]),
                await state.get_session(namespace, InferenceId(inference)),
                await state.has_session(namespace, SessionId(inference)),
            )
            for namespace, name, inference in ((THEIRS, "", "theirs"), (OURS, " 0", "0"), (OURS, " 99", "99"))
        ]
        assert [len(set(map(bool, each))) for each in known] == [1, 1, 1]
        return [all(each) for each in known]

    assert asyncio.run(main()) == [True, False, True]


def chain(name: str) -> TokenChain:
    return TokenChain(
        inference_id=InferenceId(name), session_id=SessionId(name), turn_index=0, num_messages=2, token_ids=(1,)
    )


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
