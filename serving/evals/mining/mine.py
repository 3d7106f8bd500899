"""Mining a session: which answer its user kept, what was asked, and what would show that another answer is as good.

Only sessions of production are mined whose every turn may be learned from and is stored: who does not let a service
learn has not agreed to be its yardstick either."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blake3 import blake3

from core.events import Completion, Outcome
from core.operations.drafts import Draft, DraftCase
from core.reward_spec import DerivedSpec, Role, call_line
from core.text.edits import text_of_call
from core.text.json_objects import object_of
from core.text.patterns import Pattern, pattern

_KEPT: tuple[Role, ...] = ("accept", "edit", "useful")
_BLAMED: tuple[Role, ...] = ("reject", "complaint", "retry", "void")
_SAYS = frozenset({"system", "user", "assistant"})
_NAMED = Pattern(r"(?m)^\s*(?:async )?(?:def|class|function|func|fn|interface|struct|type) +(\w+)")
_MOST_NAMES = 4
_DEMONSTRATION = "demonstration"


def mined(
    turns: Sequence[Completion], outcomes: Sequence[Outcome], roles: Mapping[str, Role], derived: DerivedSpec
) -> Draft | None:
    """Return a draft of a session, whose turns are in order; None where nothing shows that an answer was good."""
    if not turns or not all(_may_be_mined(turn) for turn in turns):
        return None
    replaced = {outcome.supersedes for outcome in outcomes}
    told = [each for each in outcomes if not each.withdrawn and each.outcome_id not in replaced]
    checks = [each for each in told if roles.get(each.name) == "check"]
    for turn in reversed(turns):
        about = [outcome for outcome in told if outcome.inference_id in (turn.inference_id, None)]  # or the session
        kept = [outcome for outcome in about if roles.get(outcome.name) in _KEPT and _is_good(outcome)]
        blamed = any(roles.get(outcome.name) in _BLAMED and _is_good(outcome) for outcome in about)
        passed = [each for each in checks if each.received_at >= turn.received_at]
        tests_passed = bool(passed) and all(_is_good(each) for each in passed)
        answer = _answer(turn, about)
        if answer and not blamed and (kept or (tests_passed and _edits(turn))):
            return _draft(turns, turn, answer, [*kept, *passed], _tests(turns, derived) if tests_passed else "")
    return None


def _may_be_mined(turn: Completion) -> bool:
    return turn.learn and turn.unstored is None and turn.environment == "production" and turn.purpose != "judge"


def _is_good(outcome: Outcome) -> bool:
    return isinstance(outcome.value, bool | int | float) and outcome.value > 0


def _answer(turn: Completion, outcomes: Sequence[Outcome]) -> str:
    """Return what the user kept: what he made of it himself, else what the turn wrote into files, else what it said."""
    shown = [o.value for o in outcomes if o.name == _DEMONSTRATION and isinstance(o.value, str) and o.value.strip()]
    if shown:
        return shown[-1]
    return "\n".join(_edits(turn)) or turn.text.strip()


def _edits(turn: Completion) -> list[str]:
    written = [text_of_call(call.arguments) for call in turn.tool_calls]
    return [text for text in written if text and text.strip()]


def _draft(
    turns: Sequence[Completion], turn: Completion, answer: str, outcomes: Sequence[Outcome], tests: str
) -> Draft:
    spoken = [message for message in turn.messages if message.get("role") in _SAYS and _text(message)]
    request = next((_text(message) for message in spoken if message["role"] == "user"), "")
    repository = {key: value for each in turns for key, value in each.tags.items()}
    image = next((each.environment_image for each in turns if each.environment_image), None)
    if image is not None:
        repository["environment_image"] = image
    is_whole = len(spoken) == len(turn.messages)
    messages = spoken if is_whole else [{"role": "user", "content": request}]
    draft_id = blake3(f"{turn.namespace}\0{turn.session_id}".encode()).hexdigest(8)
    return Draft(
        draft_id=draft_id,
        session_id=turn.session_id,
        inference_id=turn.inference_id,
        namespace=turn.namespace,
        workload=turn.workload,
        repository=repository,
        why=", ".join(dict.fromkeys(f"{each.name} {each.value}" for each in outcomes)),
        case=DraftCase(
            name=f"{turn.workload} {draft_id[:6]}",
            kind="task" if tests and image is not None else "answer",
            group=turn.workload,
            messages=tuple({"role": message["role"], "content": _text(message)} for message in messages),
            instruction=request,
            answer=answer,
            checker=json.dumps({"kind": "contains", "all": list(_landmarks(answer))}),
            tests=tests,
            dockerfile=_dockerfile(repository),
        ),
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content.strip() if isinstance(content, str) else ""


def _landmarks(answer: str) -> Iterator[str]:
    """Yield what stands in every good answer, as a first guess: names that it defines, else its longest line."""
    names = list(dict.fromkeys(name for name, *_ in _NAMED.groups(answer)))[:_MOST_NAMES]
    yield from names or [max((line.strip() for line in answer.splitlines()), key=len)]


def _tests(turns: Sequence[Completion], derived: DerivedSpec) -> str:
    """Return the last command of the session that ran tests; "" where there is none."""
    runs = pattern(derived.tests)
    calls = [call for turn in turns for call in turn.tool_calls if runs.is_in(call_line(call.name, call.arguments))]
    if not calls:
        return ""
    command = (object_of(calls[-1].arguments) or {}).get("command")
    if isinstance(command, list):
        return " ".join(map(str, command))
    return command if isinstance(command, str) else ""


def _dockerfile(repository: Mapping[str, str]) -> str:
    """Return the file that makes the repository's state, as far as that is known: the image by its name and digest."""
    image, name = repository.get("environment_image"), repository.get("image")
    return f"FROM {name}@{image}\n" if image and name else ""
