"""The facts of a turn, known when it opens: how much effort it took, and whether its form is good.

They depend on the reward spec where they must (what counts as a claim): the words themselves are not kept in the
ledger."""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import msgspec

from core.events import Completion, ToolCall
from core.operations.ledger import CallPlace, Effort, Facts
from core.records.call_times import call_times, critical_path_seconds
from core.reward_spec import ClaimSpec, RewardRules, call_line
from core.text.json_objects import object_of
from core.text.json_schema import NoSchema, Schema, StepBudget
from core.text.patterns import pattern
from scoring.rewards.runs import is_failure, run_of, verdict_of

_REPORTS = "reports"  # the tag by which a client says which outcome it always reports
_ANSWERS = 100  # that an answer is compared with
MOST_CLAIMS: Final = 128  # places in an answer: each cuts it twice, and into more than 256 parts no turn is cut


def facts_of(turn: Completion, parent: Facts | None, rules: RewardRules) -> Facts:
    """Return the facts of a turn. `parent`: those of the turn that it continues, if known."""
    if turn.unstored is not None:
        return _unstored_facts(turn, parent)
    refused = refused_calls(turn)
    unbacked = [claim for claim in rules.claims if _claims(turn.text, claim) and not _is_backed(turn, claim, rules)]
    return Facts(
        parent_id=turn.parent_id,
        group_id=turn.group_id,
        environment=turn.environment,
        asked=_digest(turn.messages if turn.parent_id is None else new_messages(turn.messages)),
        whole=turn.finish_reason not in ("abort", "error"),
        effort=_effort(turn, parent),
        before=Effort() if parent is None else parent.before + parent.effort,
        context_tokens=len(turn.prompt_token_ids) + len(turn.token_ids),
        malformed_call=turn.broken_calls > 0 or any(refused),
        cut_off=turn.finish_reason == "length",
        empty_answer=not turn.text.strip() and not turn.tool_calls,
        repeated_answer=_repeats(turn),
        unbacked_claim=bool(unbacked),
        reports_shown=_reports_shown(turn),
        tokens=len(turn.token_ids),
        calls=tuple(
            CallPlace(call.id, call.token_range.start, call.token_range.end, is_refused)
            for call, is_refused in zip(turn.tool_calls, refused, strict=True)
            if call.token_range is not None
        ),
        answers=_answers(turn),
        claims=_places(turn, unbacked),
    )


def _answers(turn: Completion) -> tuple[tuple[int, int], ...]:
    found = tuple((each.start, each.end) for each in turn.segments if each.kind == "answer")
    return () if found == ((0, len(turn.token_ids)),) else found


def _unstored_facts(turn: Completion, parent: Facts | None) -> Facts:
    """Return the facts of a turn whose text was not stored: only its outcomes say what it was worth.

    It does not count as whole, so that nobody is found to have left it for another answer."""
    return Facts(
        parent_id=turn.parent_id,
        group_id=turn.group_id,
        environment=turn.environment,
        whole=False,
        reports_shown=_reports_shown(turn),
        before=Effort() if parent is None else parent.before + parent.effort,
        context_tokens=turn.num_prompt_tokens + turn.num_output_tokens,
    )


def _reports_shown(turn: Completion) -> bool:
    return turn.tags.get(_REPORTS) == "shown"


def _effort(turn: Completion, parent: Facts | None) -> Effort:
    tokens = dict.fromkeys(("thinking", "tool", "answer", "forced"), 0)
    for segment in turn.segments:
        tokens[segment.kind] += segment.end - segment.start
    calls = len(turn.tool_calls)
    return Effort(
        thinking=tokens["thinking"],
        tool_call=tokens["tool"],
        tool_output=_tool_output(turn, parent),
        answer=tokens["answer"],
        calls=min(calls, 1),
        parallel_calls=max(calls - 1, 0),
        turns=1,
        seconds=critical_path_seconds(call_times(turn.messages if parent is None else new_messages(turn.messages))),
    )


def _tool_output(turn: Completion, parent: Facts | None) -> int:
    new_tokens = len(turn.prompt_token_ids) - (0 if parent is None else parent.context_tokens)
    new = new_messages(turn.messages) if parent is not None else turn.messages
    lengths = [(message["role"] == "tool", len(content_of(message))) for message in new]
    characters = sum(length for _, length in lengths)
    by_tools = sum(length for is_tool, length in lengths if is_tool)
    return max(new_tokens, 0) * by_tools // characters if characters else 0


# ------------------------------------------------------------------------------------------------ the conversation


def content_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message; of a message in parts, that of the text parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(text if isinstance(text, str) else "" for text in texts)


def new_messages(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages after the last answer: what the turn adds to the conversation."""
    for place in range(len(messages), 0, -1):
        if messages[place - 1]["role"] == "assistant":
            return messages[place:]
    return messages


def _digest(messages: Sequence[Mapping[str, Any]]) -> str:
    said = [(message["role"], normal(content_of(message))) for message in messages]
    return hashlib.blake2b(msgspec.json.encode(said), digest_size=8).hexdigest()


def _repeats(turn: Completion) -> bool:
    """Return whether the answer repeats one of the last answers; a conversation may have any number."""
    said = normal(turn.text)
    if not said or turn.tool_calls or turn.purpose != "turn":
        return False
    answers = (message for message in reversed(turn.messages) if message["role"] == "assistant")
    return any(normal(content_of(message)) == said for message in islice(answers, _ANSWERS))


def normal(text: str) -> str:
    """Return the text's words, without case and spacing."""
    return " ".join(text.split()).casefold()


def _claims(text: str, claim: ClaimSpec) -> bool:
    return pattern(claim.says).is_in(text)


def _places(turn: Completion, claims: Sequence[ClaimSpec]) -> tuple[tuple[int, int], ...]:
    """Return the output tokens that say the claims, where the turn says which tokens its text stands in.

    Of more than MOST_CLAIMS none: the blame is then the whole turn's, and what is stored has a bound."""
    if not turn.text_ends or len(turn.text_ends) != len(turn.token_ids):
        return ()
    found = {
        (bisect_right(turn.text_ends, start), bisect_left(turn.text_ends, end) + 1)
        for claim in claims
        for start, end in pattern(claim.says).spans(turn.text)
        if start < end <= turn.text_ends[-1]
    }
    return tuple(sorted(found)) if len(found) <= MOST_CLAIMS else ()


def _is_backed(turn: Completion, claim: ClaimSpec, rules: RewardRules) -> bool:
    """Return whether the calls before the answer back the claim; the last one that says anything decides.

    Calls of the same turn have no result yet. A run that failed is no evidence, nor is any other call that failed."""
    for call, result in _latest_calls(turn.messages):
        if pattern(claim.needs).is_in(call):
            return result is None or not _failed(call, result, rules)
        if claim.voided_by is not None and pattern(claim.voided_by).is_in(call):
            return False
    return False


def _failed(call: str, result: str, rules: RewardRules) -> bool:
    return is_failure(result) if run_of(call, rules.derived) is None else verdict_of(result) is False


def _latest_calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """Yield the tool calls of the conversation as patterns match them, each with its result; the last first."""
    results: dict[object, str] = {}
    for message in reversed(messages):
        if message["role"] == "tool":
            results[message.get("tool_call_id")] = content_of(message)
        for call in reversed(message.get("tool_calls") or ()):
            yield call_line(call["function"]["name"], call["function"]["arguments"]), results.get(call.get("id"))


# ------------------------------------------------------------------------------------------------ tool calls

_KEPT_SCHEMAS = 1024
_LARGEST_KEPT = 1 << 16  # characters: larger ones are read anew, so that what is kept stays small


def has_malformed_call(turn: Completion) -> bool:
    return turn.broken_calls > 0 or any(refused_calls(turn))


def refused_calls(turn: Completion) -> list[bool]:
    """Return of each call whether its tool refuses it."""
    schemas = _Schemas(turn)
    return [schemas.refuse(call) for call in turn.tool_calls]


class _Schemas:
    """The schemas of the tools that a turn was offered. All its calls share one budget of validation."""

    def __init__(self, turn: Completion) -> None:
        self._offered = {tool["function"]["name"]: tool["function"] for tool in turn.tools}
        self._read: dict[str, Schema | None] = {}
        self._budget = StepBudget()

    def refuse(self, call: ToolCall) -> bool:
        """Return whether the tool refuses the call.

        False also when the schema itself is invalid, which is not the model's fault, or when it cannot be checked."""
        if call.name not in self._offered:
            return True
        arguments = object_of(call.arguments)
        if arguments is None:
            return True
        schema = self._of(call.name)
        return schema is not None and schema.admits(arguments, self._budget) is False

    def _of(self, name: str) -> Schema | None:
        if name not in self._read:
            text = json.dumps(self._offered[name].get("parameters") or {}, sort_keys=True)
            self._read[name] = _kept_schema(text) if len(text) <= _LARGEST_KEPT else _schema(text)
        return self._read[name]


def _schema(text: str) -> Schema | None:
    try:
        return Schema(json.loads(text))
    except NoSchema:
        return None


_kept_schema = lru_cache(maxsize=_KEPT_SCHEMAS)(_schema)
