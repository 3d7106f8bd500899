"""The forms that put answers to one prompt side by side: `dpo` and `grpo`.

What is held in memory of a turn is its id, its reward and the digests of what it was asked, some 400 bytes; turns are
fetched again two at a time (`dpo`), or as many as there are answers to one prompt (`grpo`)."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from core.events import Completion
from core.ids import InferenceId
from onward.replays.exports.columns import DPO, GRPO
from onward.replays.exports.conversations import Message, tools_of
from onward.replays.exports.past import ChosenPast, Logged
from onward.replays.exports.rows import ConversationTurn, Lessons, Row

_DIGEST_BYTES = 16
_encode = msgspec.msgpack.Encoder().encode


class GroupedTurn(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a turn until all turns of its prompt are known."""

    inference_id: InferenceId
    reward: float
    is_in_a_row: bool = False


class Prompts:
    """The turns of each prompt, in the order in which prompts came.

    A prompt is the same by its tokens, or by its messages in one group: the answers to one request, also where it was
    rendered anew when it was tried again. Rewards of other namespaces and workloads are no measure for each other."""

    def __init__(self) -> None:
        self._groups: list[list[GroupedTurn]] = []
        self._place: dict[bytes, int] = {}

    def add(self, lesson: ConversationTurn, answered: GroupedTurn) -> None:
        keys = _keys(lesson)
        places = sorted({self._place[key] for key in keys if key in self._place})
        if not places:
            places = [len(self._groups)]
            self._groups.append([])
        if len(places) > 1:  # its tokens are known, and so are its messages in its group: they are one prompt
            self._groups[places[0]] += self._groups[places[1]]
            self._groups[places[1]] = []
            self._place = {key: places[0] if place == places[1] else place for key, place in self._place.items()}
        self._place.update(dict.fromkeys(keys, places[0]))
        self._groups[places[0]].append(answered)

    def groups(self) -> Iterator[list[GroupedTurn]]:
        return (group for group in self._groups if group)


def _keys(lesson: ConversationTurn) -> tuple[bytes, bytes]:
    turn = lesson.turn
    where = turn.namespace, turn.workload
    return _digest("tokens", *where, turn.prompt_token_ids), _digest(
        "group", *where, turn.group_id, lesson.prompt, turn.tools
    )


def _digest(*parts: Any) -> bytes:
    return blake2b(_encode(parts), digest_size=_DIGEST_BYTES).digest()


class Dpo:
    """Pairs of a better and a worse answer to the same prompt, for TRL's DPOTrainer.

    Of the answers to a prompt the best goes with the worst, the second best with the second worst, and so on while
    their rewards differ. What a user made of an answer goes with that answer."""

    columns = DPO

    def __init__(self, past: ChosenPast, lessons: Lessons) -> None:
        self._past, self._lessons, self._prompts = past, lessons, Prompts()

    def of_session(self, session: Sequence[Logged]) -> Iterator[Row]:
        for lesson in self._lessons.of(session):
            kept, said = self._lessons.talk.kept(lesson.turn, lesson.reward), self._lessons.talk.answer(lesson.turn)
            is_edited = kept is not None and kept != said
            self._prompts.add(lesson, GroupedTurn(lesson.turn.inference_id, lesson.reward.value, is_edited))
            if is_edited:
                assert kept is not None
                yield _pair(lesson.prompt, (kept, None, None), (said, lesson.reward.value, lesson.turn), "edit")

    def at_end(self) -> Iterator[Row]:
        for group in self._prompts.groups():
            ordered = sorted(group, key=lambda each: (each.reward, each.inference_id))
            for low in range((len(ordered) + 1) // 2):
                worse, better = ordered[low], ordered[-1 - low]
                row = self._row(better, worse) if better.reward > worse.reward else "unpaired"
                if isinstance(row, dict):
                    yield row
                else:
                    alone = {worse, better} if worse is not better else {worse}
                    self._lessons.left_out[row] += sum(not each.is_in_a_row for each in alone)

    def _row(self, better: GroupedTurn, worse: GroupedTurn) -> Row | str:
        """Return the pair, or why it is none."""
        first, second = self._past.turns([better.inference_id, worse.inference_id])
        chosen, rejected = (self._lessons.talk.answer(each.turn) for each in (first, second))
        prompt = self._lessons.talk.prompt(first.turn)
        assert prompt is not None, "it was a lesson"
        if {**chosen, "tool_calls": _without_ids(chosen)} == {**rejected, "tool_calls": _without_ids(rejected)}:
            return "same_answer"
        return _pair(prompt, (chosen, better.reward, first.turn), (rejected, worse.reward, second.turn), "samples")


_Side = tuple[Message, float | None, Completion | None]


def _pair(prompt: list[Message], chosen: _Side, rejected: _Side, source: str) -> Row:
    asked = rejected[2]
    assert asked is not None, "what was rejected was sampled"
    return {
        "prompt": prompt,
        "chosen": [chosen[0]],
        "rejected": [rejected[0]],
        "tools": tools_of(asked),
        "source": source,
        "reward_chosen": chosen[1],
        "reward_rejected": rejected[1],
        "inference_id_chosen": None if chosen[2] is None else chosen[2].inference_id,
        "inference_id_rejected": asked.inference_id,
        "workload": asked.workload,
    }


def _without_ids(message: Message) -> list[Any]:
    return [call["function"] for call in message.get("tool_calls", ())]


class Grpo:
    """Prompts, each with the answers that were logged and their rewards, for TRL's GRPOTrainer and for verl."""

    columns = GRPO

    def __init__(self, past: ChosenPast, lessons: Lessons) -> None:
        self._past, self._lessons, self._prompts = past, lessons, Prompts()

    def of_session(self, session: Sequence[Logged]) -> Iterator[Row]:
        for lesson in self._lessons.of(session):
            self._prompts.add(lesson, GroupedTurn(lesson.turn.inference_id, lesson.reward.value, True))
        yield from ()

    def at_end(self) -> Iterator[Row]:
        for index, group in enumerate(self._prompts.groups()):
            yield self._row(index, group)

    def _row(self, index: int, group: Sequence[GroupedTurn]) -> Row:
        turns = [each.turn for each in self._past.turns([each.inference_id for each in group])]
        answers, rewards = [self._lessons.talk.answer(turn) for turn in turns], [each.reward for each in group]
        texts = [answer["content"] for answer in answers]
        best = max(range(len(group)), key=lambda place: rewards[place])
        return {
            "prompt": self._lessons.talk.prompt(turns[0]),
            "logged_completions": [[answer] for answer in answers],
            "rewards": rewards,
            "inference_ids": [each.inference_id for each in group],
            "tools": tools_of(turns[0]),
            "data_source": f"onward/{turns[0].workload}",
            "ability": turns[0].workload,
            "reward_model": {"style": "rule", "ground_truth": texts[best] if rewards[best] > 0 else ""},
            "extra_info": {"index": index, "answers": texts, "rewards": rewards},
        }
