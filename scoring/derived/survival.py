"""The rule about survival: how much of an edit is still there when its file is seen again."""

from collections.abc import Iterable, Iterator

from core.reward_spec import DerivedSpec
from core.text.edits import share_left, text_of_call
from core.text.json_objects import object_of
from core.text.patterns import pattern
from scoring.derived.conclusion import Conclusion
from scoring.derived.conversation import AnsweredCall, LoggedConversation

_HOUR_S, _DAY_S, _WEEK_S = 3600.0, 86400.0, 604800.0
_NAMES = ((_WEEK_S, "survived_1w"), (_DAY_S, "survived_1d"), (_HOUR_S, "survived_1h"), (0.0, "survived"))
"""Ages, and the outcome's name from each of them on."""
_PATHS = ("path", "file_path", "file", "filename", "target_file")


def survived(conversation: LoggedConversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Conclude which share of an edit's lines its file still has; of several edits of one file, the last one's.

    It applies only if the user spoke in between: before, nobody but the model had a chance to change them."""
    views = _views(conversation, spec)
    seen: set[str] = set()
    for place, call in reversed(list(enumerate(conversation.calls))):
        path = _argument(call, _PATHS) if _may_name(call, views) else None
        if path is None or path in seen or not pattern(spec.edits).is_in(call.line):
            continue
        seen.add(path)
        view = next((view for view in views.get(path, ()) if _spoke_between(conversation, call, view)), None)
        if view is not None and call.turn is not None:
            share = share_left(text_of_call(call.arguments) or "", view.result or "")
            if share is not None:
                age_s = (conversation.turn.received_at - call.turn.opened_at).total_seconds()
                name = next(name for least_s, name in _NAMES if age_s >= least_s or not least_s)
                yield Conclusion(name, call.turn.inference_id, share, f"{path}, seen again", place, call.id)


def _views(conversation: LoggedConversation, spec: DerivedSpec) -> dict[str, list[AnsweredCall]]:
    """Return the calls that read files since the last answer, by path."""
    found: dict[str, list[AnsweredCall]] = {}
    for call in conversation.calls:
        if conversation.answers_newly(call) and pattern(spec.reads).is_in(call.line):
            path = _argument(call, _PATHS)
            if path is not None:
                found.setdefault(path, []).append(call)
    return found


def _may_name(call: AnsweredCall, paths: Iterable[str]) -> bool:
    """Return whether the call may name a path, without parsing it: a path occurs literally, or escaped."""
    return any(path in call.arguments or "\\" in call.arguments for path in paths)


def _spoke_between(conversation: LoggedConversation, edit: AnsweredCall, view: AnsweredCall) -> bool:
    return conversation.user_spoke_between(edit.said_at, view.said_at)


def _argument(call: AnsweredCall, names: tuple[str, ...]) -> str | None:
    arguments = object_of(call.arguments) or {}
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)
