"""The route `GET /v1/sessions`: sessions, the newest first, and those among them that fit a search."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.turns.intake import check_id
from api.turns.lookup import read
from core.errors import InvalidRequest
from core.ids import InferenceId, Namespace, SessionId, inference_id_at
from core.store.newest.recent import Glance
from core.store.work import View

_DEFAULT_LIMIT, _LARGEST_PAGE = 50, 200
_LOOKED_AT = 1000  # turns a page is made from
_MOST_TURNS = 10_000  # of all its sessions
_MOST_NAMED = 200  # sessions of one prefix
_SEARCHED = ("session", "user", "workload", "client", "since", "until", "feedback", "least_reward", "most_reward")


class SessionSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What a session must fit, and where to look. None asks for nothing."""

    session: str | None = None
    """The beginning of its id."""
    user: str | None = None
    """The beginning of the hash of a user who speaks in it."""
    workload: str | None = None
    client: str | None = None
    since: datetime | None = None
    feedback: bool | None = None
    least_reward: float | None = None
    most_reward: float | None = None
    before: InferenceId | None = None
    limit: int = _DEFAULT_LIMIT


class ListedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the list. `reward` is the mean over its rewarded turns."""

    session_id: SessionId
    turns: int
    rewarded: int
    reward: float | None
    lowest: float | None
    highest: float | None
    has_feedback: bool
    trainable: int
    workloads: list[str]
    clients: list[str]
    protocols: list[str]
    users: list[str]
    began_at: datetime
    last_at: datetime
    last_turn: InferenceId


def session_list_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["sessions"])
    services = context.services

    @router.get("/v1/sessions")
    async def list_sessions(request: Request) -> Response:
        """Return sessions by their latest turn, the newest first; `next` is the `before` of the next page, or null.

        `session` and `user` are beginnings (of the id, of the user's hash), `workload` and `client` names, `since` and
        `until` times as in `2026-01-31T12:00:00Z`, `feedback` true or false; `least_reward` and `most_reward` bound the
        mean reward of a session. A page looks at no more than 1000 turns, so it may show few, or none, and have a next.
        `looked_back_to` is how far it went; `complete` is false where sessions are so long that their earliest turns
        are not in the figures, or where more sessions begin so than are listed."""
        identity = identity_of(request)
        only_parameters(request, *_SEARCHED, "before", "limit")
        search = _search(request)
        return json_response(await read(services, lambda view: _page(view, identity.namespace, search)))

    return router


# ------------------------------------------------------------------------------------------------ what is asked


def _search(request: Request) -> SessionSearch:
    given = request.query_params
    until, before = _time(request, "until"), given.get("before")
    bounds = [] if before is None else [InferenceId(check_id(before, "before"))]
    if until is not None:
        bounds.append(inference_id_at(int(until.timestamp() * 1000)))
    return SessionSearch(
        session=None if given.get("session") is None else check_id(given["session"], "session"),
        user=given.get("user"),
        workload=given.get("workload"),
        client=given.get("client"),
        since=_time(request, "since"),
        feedback=_flag(request, "feedback"),
        least_reward=_reward(request, "least_reward"),
        most_reward=_reward(request, "most_reward"),
        before=min(bounds, default=None),
        limit=whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1),
    )


def _time(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{name}: must be a time, such as 2026-01-31T12:00:00Z", param=name) from None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _flag(request: Request, name: str) -> bool | None:
    text = request.query_params.get(name)
    if text not in (None, "true", "false"):
        raise InvalidRequest(f"{name}: must be true or false", param=name)
    return None if text is None else text == "true"


def _reward(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else msgspec.convert(text, float, strict=False)
    except msgspec.ValidationError:
        raise InvalidRequest(f"{name}: must be a number", param=name) from None


# ------------------------------------------------------------------------------------------------ what is found


def _page(view: View, namespace: Namespace, search: SessionSearch) -> dict[str, Any]:
    if search.session is not None:
        return _named(view, namespace, search, search.session)
    window = view.recent.glances(namespace, search.before, _LOOKED_AT)
    turns = view.recent.of_sessions(namespace, {turn.session_id for turn in window}, _MOST_TURNS)
    found = _sessions(view, namespace, turns)
    in_page = [each for each in found if search.before is None or each.last_turn < search.before]
    fitting = [each for each in in_page if _fits(each, search)]
    shown = fitting[: search.limit]
    is_over = len(window) < _LOOKED_AT or (search.since is not None and window[-1].received_at < search.since)
    following = shown[-1].last_turn if len(fitting) > len(shown) else None if is_over else window[-1].inference_id
    return _listed(shown, following, window[-1].received_at if window else None, complete=len(turns) < _MOST_TURNS)


def _named(view: View, namespace: Namespace, search: SessionSearch, prefix: str) -> dict[str, Any]:
    """Return the sessions whose ids begin so, however old they are."""
    named = view.recent.sessions_named(namespace, prefix, _MOST_NAMED)
    turns = view.recent.of_sessions(namespace, named, _MOST_TURNS)
    fitting = [each for each in _sessions(view, namespace, turns) if _fits(each, search)]
    in_page = [each for each in fitting if search.before is None or each.last_turn < search.before]
    shown = in_page[: search.limit]
    following = shown[-1].last_turn if len(in_page) > len(shown) else None
    complete = len(named) < _MOST_NAMED and len(turns) < _MOST_TURNS
    return _listed(shown, following, None, complete=complete)


def _listed(
    shown: Sequence[ListedSession], following: InferenceId | None, looked_back_to: datetime | None, *, complete: bool
) -> dict[str, Any]:
    rest = {"next": following, "looked_back_to": looked_back_to, "complete": complete}
    return {"object": "list", "data": shown, **rest}


def _sessions(view: View, namespace: Namespace, turns: Sequence[Glance]) -> list[ListedSession]:
    """Return the sessions of these turns, the one with the newest turn first."""
    by_session: dict[SessionId, list[Glance]] = defaultdict(list)
    for turn in turns:
        by_session[turn.session_id].append(turn)
    ids = [turn.inference_id for turn in turns]
    worth = view.recent.worth(ids)
    told, told_as_such = view.recent.heard(namespace, ids, by_session)
    return [
        _session(session_id, members, worth, told, session_id in told_as_such)
        for session_id, members in by_session.items()
    ]


def _session(
    session_id: SessionId,
    turns: Sequence[Glance],
    worth: Mapping[InferenceId, float],
    told: Collection[InferenceId],
    is_told: bool,
) -> ListedSession:
    values = [worth[turn.inference_id] for turn in turns if turn.inference_id in worth]
    return ListedSession(
        session_id=session_id,
        turns=len(turns),
        rewarded=len(values),
        reward=fmean(values) if values else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        has_feedback=is_told or any(turn.inference_id in told for turn in turns),
        trainable=sum(turn.trainable for turn in turns),
        workloads=_each(turns, lambda turn: turn.workload),
        clients=_each(turns, lambda turn: turn.client),
        protocols=_each(turns, lambda turn: turn.protocol),
        users=_each(turns, lambda turn: turn.user_id),
        began_at=min(turn.received_at for turn in turns),
        last_at=max(turn.received_at for turn in turns),
        last_turn=turns[0].inference_id,
    )


def _each(turns: Sequence[Glance], read: Callable[[Glance], str | None]) -> list[str]:
    return sorted({value for value in map(read, turns) if value is not None})


def _fits(session: ListedSession, search: SessionSearch) -> bool:
    return (
        (search.user is None or any(user.startswith(search.user) for user in session.users))
        and (search.workload is None or search.workload in session.workloads)
        and (search.client is None or search.client in session.clients)
        and (search.since is None or session.last_at >= search.since)
        and (search.feedback is None or session.has_feedback is search.feedback)
        and (search.least_reward is None or (session.reward is not None and session.reward >= search.least_reward))
        and (search.most_reward is None or (session.reward is not None and session.reward <= search.most_reward))
    )
