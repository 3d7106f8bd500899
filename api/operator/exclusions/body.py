"""The bodies of `/v1/exclusions`: what to exclude, as operators name it, and the selection that this is."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from api.access.context import Context
from api.access.identity import Identity
from core.errors import Forbidden, InvalidRequest, NotFound
from core.ids import InferenceId, Namespace, PolicyRef, SessionId, UserHash, base_ref
from core.model.learned_from import turns_of
from core.operations.exclusions import Selection
from core.store.work import View

_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=1000)]
_Numbers = Annotated[tuple[Annotated[int, Meta(ge=1, le=(1 << 63) - 1)], ...], Meta(max_length=1000)]
_Moment = Annotated[datetime, Meta(tz=True)]
_CRITERIA = "users, sessions, turns, keys, workloads, answered_by, learned_by, since or until"


class ExclusionPreviewBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/exclusions/preview`: turns that fit each criterion that is given, by any of its values.

    `users` are names as requests give them, or the hashes that the console shows; `answered_by` versions that spoke a
    turn, `learned_by` versions whose update a turn was part of; `since` and `until` bound the turn's arrival. Without
    `namespace` it is the key's own."""

    namespace: _Name | None = None
    users: _Names = ()
    sessions: _Names = ()
    turns: _Names = ()
    keys: _Names = ()
    workloads: _Names = ()
    answered_by: _Numbers = ()
    learned_by: _Numbers = ()
    since: _Moment | None = None
    until: _Moment | None = None


class ExclusionBody(ExclusionPreviewBody, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/exclusions`: what to exclude, and why."""

    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]


class LiftBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/exclusions/{exclusion_id}/lift`."""

    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]


def selection_of(context: Context, view: View, identity: Identity, body: ExclusionPreviewBody) -> Selection:
    """Return the selection that a body means.

    Raises InvalidRequest where nothing is selected by anything, Forbidden for another namespace than the key's, and
    NotFound naming what has no turn in it."""
    namespace = Namespace(body.namespace or identity.namespace)
    if namespace != identity.namespace and "admin" not in identity.scopes:
        raise Forbidden(f"namespace: this API key is of {identity.namespace}", param="namespace")
    if body.since is not None and body.until is not None and body.since >= body.until:
        raise InvalidRequest("until: must be after since", param="until")
    found = Selection(
        namespace=namespace,
        users=_users(context, view, namespace, body.users),
        sessions=tuple(map(SessionId, body.sessions)),
        turns=_turns(context, view, namespace, body),
        keys=body.keys,
        workloads=body.workloads,
        versions=tuple(_version(view, number, "answered_by") for number in body.answered_by),
        since=_in_utc(body.since, "since"),
        until=_in_utc(body.until, "until"),
    )
    if found.is_empty:
        raise InvalidRequest(f"say what to exclude: {_CRITERIA}", code="nothing_selected")
    of = partial(Selection, namespace=namespace)
    _require(view, "sessions", {name: of(sessions=(SessionId(name),)) for name in body.sessions})
    _require(view, "turns", {name: of(turns=(InferenceId(name),)) for name in body.turns})
    _require(view, "workloads", {name: of(workloads=(name,)) for name in body.workloads})
    asked = view.exclusions.keys_that_asked(namespace, body.keys)
    if unknown := [name for name in body.keys if name not in asked]:
        raise _no_turn("keys", unknown[0], namespace)
    return found


def _in_utc(moment: datetime | None, field: str) -> datetime | None:
    try:
        return None if moment is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest(f"{field}: this time is not in the years 1 to 9999 of UTC", param=field) from error


def _users(context: Context, view: View, namespace: Namespace, named: Collection[str]) -> tuple[UserHash, ...]:
    """Return the hashes of users who are named, or given as hashes already."""
    found = []
    for name in named:
        hashed = context.keys.user_hash(namespace, name)
        known = [user for user in (UserHash(name), hashed) if user is not None and _has(view, namespace, user)]
        if not known:
            raise _no_turn("users", name, namespace)
        found += known
    return tuple(found)


def _has(view: View, namespace: Namespace, user: UserHash) -> bool:
    return next(view.exclusions.selected(Selection(namespace=namespace, users=(user,))), None) is not None


def _turns(context: Context, view: View, namespace: Namespace, body: ExclusionPreviewBody) -> tuple[InferenceId, ...]:
    """Return the turns that are named, and those of the namespace that the updates of versions were made of."""
    found = [InferenceId(name) for name in body.turns]
    for number in body.learned_by:
        policy = view.policies.get(_version(view, number, "learned_by"))
        learned = () if policy is None else turns_of(context.services.blobs, policy, namespace)
        if not learned:
            raise InvalidRequest(
                f"learned_by: version {number} learned from no turn of namespace {namespace} that is known here",
                param="learned_by",
            )
        found += learned
    return tuple(dict.fromkeys(found))


def _version(view: View, number: int, field: str) -> PolicyRef:
    version = base_ref(number)
    if view.policies.state_of(version) is None:
        raise NotFound(f"{field}: no policy version {number}; GET /v1/policies lists them", param=field)
    return version


def _require(view: View, field: str, alone: Mapping[str, Selection]) -> None:
    """Raise NotFound naming the first name whose selection, `alone`, holds no turn."""
    for name, selection in alone.items():
        if next(view.exclusions.selected(selection), None) is None:
            raise _no_turn(field, name, selection.namespace)


def _no_turn(field: str, name: str, namespace: Namespace) -> NotFound:
    of_it = name if field == "turns" else f"of {field.removesuffix('s')} {name}"
    return NotFound(f"{field}: there is no turn {of_it} in namespace {namespace}", param=field)
