"""Values computed from a text that feedback sends instead: how far a suggestion was edited, how much is left."""

from functools import partial

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.feedback.edits import edits_to, lost_lines
from api.feedback.targets import NamedTurn
from api.feedback.values import spec_of
from core.errors import InvalidRequest, StoreUnavailable
from core.events import Completion, TextEdit
from core.ports import Renderer
from core.reward_spec import Measure, RewardSpec
from core.text.edits import LONGEST, edit_distance, patched, share_left, text_of_call

LONGEST_SNAPSHOT = 262_144
"""The most characters of a file in which lines are looked for."""
_FIELDS = {"kept": ("final_text", "diff"), "distance": ("final_text", "diff"), "survived": ("snapshot",)}


def check_measured(spec: RewardSpec, metric: str, field: str, text: str) -> Measure:
    """Return the metric's measure. Raises InvalidRequest where it takes no such text, or the text is too long."""
    measure = spec_of(spec, metric).measure
    if measure is None or field not in _FIELDS[measure]:
        wanted = "a value" if measure is None else f"a value, or {' or '.join(_FIELDS[measure])}"
        raise InvalidRequest(f"{field}: {metric} takes {wanted}", param=field, code="invalid_value")
    longest = LONGEST if field == "final_text" else LONGEST_SNAPSHOT
    if len(text) > longest:
        raise InvalidRequest(f"{field}: {len(text)} characters; at most {longest}", param=field, code="too_long")
    return measure


class MeasuredFeedback(msgspec.Struct, frozen=True):
    """What feedback says: its value, and the edits that it tells of."""

    value: bool | float | str
    edits: tuple[TextEdit, ...] = ()


async def measured(
    context: ApiContext,
    identity: Identity,
    named: NamedTurn,
    call_id: str | None,
    field: str,
    text: str,
    measure: Measure,
) -> MeasuredFeedback:
    """Measure a text against what the turn suggested.

    Raises NotFound for an unknown turn, InvalidRequest for one that suggested no text, or for a text that cannot be
    compared with it; Unfinished, StoreUnavailable."""
    renderer, turn = context.services.renderer, await named.load_whole()
    suggested = _suggested(turn, call_id)
    if measure == "survived":
        lines = _in_whole_lines(turn, suggested) if call_id is None else suggested
        return await context.aside.run(identity.caller, partial(_survived, renderer, turn, call_id, lines, text))
    return await context.aside.run(
        identity.caller, partial(_edited, renderer, turn, call_id, suggested, measure, field, text)
    )


async def demonstrated(
    context: ApiContext, identity: Identity, named: NamedTurn, call_id: str | None, text: str
) -> MeasuredFeedback:
    """Return what a text says that somebody wanted instead; without edits where the turn is not to be had."""
    try:
        turn = await named.load()
    except StoreUnavailable:
        turn = None
    if turn is None or turn.unstored is not None:
        return MeasuredFeedback(text)
    return MeasuredFeedback(
        text,
        await context.aside.run(identity.caller, partial(edits_to, context.services.renderer, turn, call_id, text)),
    )


def _suggested(turn: Completion, call_id: str | None) -> str:
    """Return what the call writes, if one is named, else the answer."""
    param = "inference_id" if call_id is None else "tool_call_id"
    if turn.unstored is not None:
        raise InvalidRequest(f"{param}: the turn was not stored, so there is nothing to compare with", param=param)
    if call_id is None:
        text: str | None = turn.text
    else:
        text = next((text_of_call(call.arguments) for call in turn.tool_calls if call.id == call_id), None)
    if text and text.strip():
        return text
    raise InvalidRequest(f"{param}: it suggested no text to compare with", param=param)


def _in_whole_lines(turn: Completion, suggested: str) -> str:
    """Return a suggestion with the rest of the lines that it continued and ended in, since lines are sought whole."""
    asked = turn.messages[0]
    if asked["role"] != "prompt":
        return suggested
    before, after = asked["content"].rpartition("\n")[2], asked.get("suffix", "").partition("\n")[0]
    first, last = suggested.partition("\n")[0], suggested.rpartition("\n")[2]
    return (before if first.strip() else "") + suggested + (after if last.strip() else "")


def _survived(renderer: Renderer, turn: Completion, call_id: str | None, suggested: str, file: str) -> MeasuredFeedback:
    share = share_left(suggested, file)
    assert share is not None, "it has more than white space"
    return MeasuredFeedback(share, lost_lines(renderer, turn, call_id, suggested.split("\n"), file))


def _edited(
    renderer: Renderer, turn: Completion, call_id: str | None, suggested: str, measure: Measure, field: str, text: str
) -> MeasuredFeedback:
    final = text if field == "final_text" else _after(suggested, text)
    for which, content in (("inference_id: what was suggested", suggested), (f"{field}: what became of it", final)):
        if len(content) > LONGEST:
            raise InvalidRequest(
                f"{which} has {len(content)} characters; distances are computed for at most {LONGEST}",
                param=which.partition(":")[0],
                code="too_long",
            )
    distance = edit_distance(suggested, final)
    value = distance if measure == "distance" else 1 - distance
    return MeasuredFeedback(value, edits_to(renderer, turn, call_id, final))


def _after(suggested: str, diff: str) -> str:
    try:
        return patched(suggested, diff)
    except ValueError as error:
        raise InvalidRequest(f"diff: {error}", param="diff", code="invalid_diff") from None
