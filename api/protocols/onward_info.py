"""The addition of ours to answers of every protocol: an `onward` object in the body, and headers.

They say which inference the answer is, which version sampled it, and whether it can be trained on.

(`gc=False`: such objects live for a request and are in no cycle; the collector need not walk them.)"""

import msgspec

from api.http.asgi import RawHeaders
from api.turns.turn import Turn
from core.events import VersionSpan
from core.ids import PolicyRef


class OnwardName(msgspec.Struct, kw_only=True, gc=False):
    """What a part of a stream says before the rest is known: which inference it is of."""

    inference_id: str


class OnwardInfo(OnwardName, kw_only=True, gc=False):
    """Our addition to an answer.

    `policy_version` is that of the first token, `policy_versions` the spans over all of them."""

    session_id: str
    parent_id: str | None
    group_id: str
    policy_version: PolicyRef
    policy_versions: tuple[VersionSpan, ...]
    trainable: bool
    untrainable_reasons: tuple[str, ...]
    learn: bool
    logged: bool


def onward_info(turn: Turn) -> OnwardInfo:
    return OnwardInfo(
        inference_id=turn.inference_id,
        session_id=turn.plan.place.session_id,
        parent_id=turn.plan.place.parent_id,
        group_id=turn.plan.group_id,
        policy_version=turn.policy_version,
        policy_versions=turn.policy_versions,
        trainable=turn.trainable,
        untrainable_reasons=turn.untrainable_reasons,
        learn=turn.plan.intake.learn,
        logged=turn.logged,
    )


def onward_headers(turns: list[Turn]) -> RawHeaders:
    """Return the headers for a request's choices; several inference ids are joined by commas.

    While streaming they say what is known at the first token. Clients keep `x-request-id`, and name the answer by it in
    what they export of their users."""
    reasons = dict.fromkeys(reason for turn in turns for reason in turn.untrainable_reasons)
    headers = [
        (b"x-onward-inference-id", ",".join(turn.inference_id for turn in turns).encode()),
        (b"x-request-id", (turns[0].inference_id if len(turns) == 1 else turns[0].plan.group_id).encode()),
        (b"x-onward-session-id", turns[0].plan.place.session_id.encode()),
        (b"x-onward-policy-version", str(turns[0].policy_version).encode()),
        (b"x-onward-arm", turns[0].arm.encode()),
        (b"x-onward-trainable", b"false" if reasons else b"true"),
    ]
    if reasons:
        headers.append((b"x-onward-untrainable-reasons", ",".join(reasons).encode()))
    if turns[0].plan.overridden:
        headers.append((b"x-onward-sampling-overridden", ",".join(turns[0].plan.overridden).encode()))
    if turns[0].plan.ignored:
        headers.append((b"x-onward-ignored", ",".join(turns[0].plan.ignored).encode()))
    return headers
