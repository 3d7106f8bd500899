"""The forms that make rows of each turn by itself: `turns`, `kto` and `sft`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from core.events import Completion, Outcome, Reward
from core.ids import BASE, InferenceId
from learner.batches.teachable import Teachable
from onward.replays.exports.columns import KTO, SFT, TURNS, Columns
from onward.replays.exports.conversations import Conversations, Message, calls_of, tools_of
from onward.replays.exports.past import ChosenPast, Logged

Row = dict[str, Any]


class ExportForm(Protocol):
    """What a form makes of the chosen turns; each session comes once."""

    columns: Columns

    def of_session(self, session: Sequence[Logged]) -> Iterator[Row]: ...

    def at_end(self) -> Iterator[Row]:
        """Yield the rows that only all sessions together make."""
        ...


class ConversationTurn(msgspec.Struct, frozen=True):
    """A turn that may teach, as a conversation."""

    turn: Completion
    reward: Reward
    prompt: list[Message]


class Lessons:
    """Sorts out what may not teach, and counts it by reason; a turn is in `left_out` once, or in a row."""

    def __init__(self, teachable: Teachable, talk: Conversations) -> None:
        self._teachable, self.talk = teachable, talk
        self.left_out = Counter[str]()

    def refusal(self, logged: Logged) -> str | None:
        """Return why a turn makes no lesson: what the learner says, or that it is no conversation."""
        lesson = self._lesson(logged)
        return lesson if isinstance(lesson, str) else None

    def of(self, session: Sequence[Logged]) -> Iterator[ConversationTurn]:
        for logged in session:
            lesson = self._lesson(logged)
            if isinstance(lesson, ConversationTurn):
                yield lesson
            else:
                self.left_out[lesson] += 1

    def _lesson(self, logged: Logged) -> ConversationTurn | str:
        why = self._teachable.refusal(logged.turn, logged.reward)
        if why is not None or logged.reward is None:
            return why or "unrewarded"
        prompt = self.talk.prompt(logged.turn)
        return "no_conversation" if prompt is None else ConversationTurn(logged.turn, logged.reward, prompt)


class Kto:
    """Answers that are wanted or not, for TRL's KTOTrainer."""

    columns = KTO

    def __init__(self, lessons: Lessons) -> None:
        self._lessons = lessons

    def of_session(self, session: Sequence[Logged]) -> Iterator[Row]:
        for lesson in self._lessons.of(session):
            if lesson.reward.value == 0:
                self._lessons.left_out["zero_reward"] += 1
                continue
            yield {
                "prompt": lesson.prompt,
                "completion": [self._lessons.talk.answer(lesson.turn)],
                "label": lesson.reward.value > 0,
                "tools": tools_of(lesson.turn),
                "reward": lesson.reward.value,
                **_of_turn(lesson.turn),
            }

    def at_end(self) -> Iterator[Row]:
        yield from ()


class Sft:
    """Answers to imitate, for TRL's SFTTrainer: what the user kept of them, where an edit says it.

    `least`: the least reward of a turn; None: any above 0."""

    columns = SFT

    def __init__(self, lessons: Lessons, least: float | None) -> None:
        self._lessons, self._least = lessons, least

    def of_session(self, session: Sequence[Logged]) -> Iterator[Row]:
        for lesson in self._lessons.of(session):
            value = lesson.reward.value
            if value <= 0 if self._least is None else value < self._least:
                self._lessons.left_out["below_least_reward"] += 1
                continue
            kept = self._lessons.talk.kept(lesson.turn, lesson.reward)
            yield {
                "messages": [*lesson.prompt, kept or self._lessons.talk.answer(lesson.turn)],
                "tools": tools_of(lesson.turn),
                "source": "sample" if kept is None else "edit",
                "reward": value,
                **_of_turn(lesson.turn),
            }

    def at_end(self) -> Iterator[Row]:
        yield from ()


class TokenRows:
    """All chosen turns, token for token; `left_out` says why the other forms have not got one."""

    columns = TURNS

    def __init__(self, past: ChosenPast, lessons: Lessons) -> None:
        self._past, self._lessons = past, lessons

    def of_session(self, session: Sequence[Logged]) -> Iterator[Row]:
        said = self._past.outcomes(session)
        for logged in session:
            yield self._row(logged, said)

    def _row(self, logged: Logged, said: dict[InferenceId, list[Outcome]]) -> Row:
        turn = logged.turn
        return {
            **{name: getattr(turn, name) for name in _AS_THEY_ARE},
            "user": turn.user_id,
            "version": version_of(turn),
            "versions": [{**_span(each), "version": str(each.version)} for each in turn.policy_versions],
            "messages": self._lessons.talk.prompt(turn) or _raw(turn),
            "tools": tools_of(turn),
            "temperature": turn.logprob_space.temperature,
            "segments": [{**_span(each), "kind": each.kind} for each in turn.segments],
            "tool_calls": calls_of(turn),
            **_of_reward(logged.reward),
            "outcomes": [_outcome(each) for each in said.get(turn.inference_id, ())],
            "tags": [{"name": name, "value": value} for name, value in turn.tags.items()],
            "tokenizer": turn.tokenizer_digest,
            "left_out": self._lessons.refusal(logged),
        }

    def at_end(self) -> Iterator[Row]:
        yield from ()


_AS_THEY_ARE = (
    "inference_id", "session_id", "turn_index", "parent_id", "group_id", "namespace", "workload", "purpose",
    "environment", "arm", "received_at", "prompt_token_ids", "token_ids", "logprobs", "text", "finish_reason",
    "trainable", "untrainable_reasons",
)  # fmt: skip


def version_of(turn: Completion) -> int | None:
    """Return the number of the version that said the last of a turn; None where it is not the base policy's."""
    last = turn.policy_versions[-1].version if turn.policy_versions else None
    return last.version if last is not None and last.policy == BASE else None


def _of_turn(turn: Completion) -> Row:
    return {
        "inference_id": turn.inference_id,
        "workload": turn.workload,
        "version": version_of(turn),
        "finish_reason": turn.finish_reason,
    }


def _of_reward(reward: Reward | None) -> Row:
    is_known = reward is not None and not reward.void
    parts = reward.components if reward is not None else {}
    return {
        "reward": reward.value if reward is not None and is_known else None,
        "reward_parts": [{"name": name, "value": value} for name, value in sorted(parts.items())],
        "reward_revision": None if reward is None else reward.revision,
        "reward_final": None if reward is None else reward.final,
        "reward_spec": None if reward is None else reward.spec,
        "credits": [{**_span(each), "value": each.value} for each in (() if reward is None else reward.credits)],
    }


def _outcome(outcome: Outcome) -> Row:
    return {
        "name": outcome.name,
        "value": msgspec.json.encode(outcome.value).decode(),
        "about": "session" if outcome.inference_id is None else "turn",
        "source": outcome.source,
        "learn": outcome.learn,
        "received_at": outcome.received_at,
    }


def _span(each: Any) -> Row:
    return {"start": each.start, "end": each.end}


def _raw(turn: Completion) -> list[Message] | None:
    """Return the one message of a raw completion; None where a turn has no messages that can be read."""
    if len(turn.messages) != 1 or turn.messages[0].keys() - {"role", "content", "suffix"}:
        return None
    return [dict(turn.messages[0])] if all(isinstance(each, str) for each in turn.messages[0].values()) else None
