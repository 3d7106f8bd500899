"""The routes of `/v1/rewards`: the rewards of turns, as a list and as a live stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import (
    LARGEST_INTEGER,
    digits,
    identity_of,
    is_still_let_in,
    json_response,
    only_parameters,
    whole_number,
)
from api.access.services import ApiServices
from api.http.background import called_by
from api.turns.answer_ids import inference_of
from api.turns.lookup import look_up, read
from api.turns.session_ids import is_id
from core.codec import to_builtins
from core.errors import InvalidRequest, NotFound, StoreUnavailable
from core.events import Outcome, Reward
from core.ids import InferenceId, Namespace, OutcomeId
from core.ports import REWARDS
from core.store.work import View

_PAGE = 500
_PAGE_BYTES = 64 << 10
"""What a stream of rewards reads ahead of its client, about: one reward may be more."""
_DEFAULT_LIMIT = 100
_POLL_S = 0.25
_ANNOUNCED_POLL_S = 2.0
_HEARTBEAT_S = 15.0
_SHOWN_CHARACTERS = 4096
MOST_OUTCOMES = 1000
"""The most that a story shows: anybody may say as much of a turn as he likes."""
MOST_REWARDS = 10_000
"""The most that a story shows: what is said of a session makes one of each of its turns."""
MOST_BYTES = 8 << 20
"""The most that a story reads of outcomes, and of rewards, for a look at the one of which most was said; and that a
list of rewards reads."""
_TURN_FIELDS = (
    "inference_id", "session_id", "turn_index", "workload", "purpose", "received_at", "policy_versions",
    "finish_reason", "text", "trainable", "untrainable_reasons",
)  # fmt: skip


class _EventStream(StreamingResponse):
    media_type = "text/event-stream"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Page:
    """Rewards as their stream sends them."""

    events: bytes
    last: int
    """The sequence of the newest of them; where there are none, that of the one before."""
    is_full: bool
    """Whether it stays as it is: to one that is not full, more may have come."""


class RewardFeed:
    """A feed that wakes subscribers when their namespace has new rewards, and reads each page once for all of them.

    While there are any subscribers, one task asks the store for all: when a scorer announces rewards, and now and
    then by itself; often, while rewards arrive that nobody announced."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._subscribers: dict[Namespace, int] = {}
        self._latest: dict[Namespace, int] = {}
        self._news = asyncio.Condition()
        self._reading: WeakValueDictionary[tuple[Namespace, int], asyncio.Task[_Page]] = WeakValueDictionary()
        self._full: WeakValueDictionary[tuple[Namespace, int], _Page] = WeakValueDictionary()
        self._task: asyncio.Task[None] | None = None
        self._pause_s = _POLL_S

    async def wait(self, namespace: Namespace, after: int, timeout_s: float) -> bool:
        """Wait for a reward after that sequence, and return whether there is one; False after `timeout_s`."""
        self._subscribers[namespace] = self._subscribers.get(namespace, 0) + 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: self._latest.get(namespace, 0) > after)
            return True
        except TimeoutError:
            return False
        finally:
            self._subscribers[namespace] -= 1
            if not self._subscribers[namespace]:
                del self._subscribers[namespace]

    async def page(self, namespace: Namespace, after: int) -> _Page:
        """Return the next page after that sequence. Raises StoreUnavailable.

        Those who ask for the same while it is read get it, too, and a full one while somebody is still sent it."""
        place = namespace, after
        if (full := self._full.get(place)) is not None:
            return full
        reading = self._reading.get(place)
        if reading is None or reading.done():  # what is over is kept by whoever has its error in hand
            look = read(self._services, lambda view: _page(view, namespace, after))
            reading = self._reading[place] = asyncio.get_running_loop().create_task(look)
        page = await asyncio.shield(reading)
        if page.is_full:
            self._full[place] = page
        return page

    async def _poll(self) -> None:
        called_by(None)
        announced = False
        with self._services.live_state.changes(REWARDS) as changes:
            while self._subscribers:
                if await self._look():
                    self._pause_s = _ANNOUNCED_POLL_S if announced else _POLL_S
                announced = await changes.wait(self._pause_s)

    async def _look(self) -> bool:
        """Look once, and return whether there was something new since the last look."""
        names = tuple(self._subscribers)
        try:
            latest = await read(self._services, lambda view: {name: view.rewards.last_sequence(name) for name in names})
        except StoreUnavailable:
            return False  # the streams stay open and catch up when it is back
        grown = any(sequence > self._latest.get(name, sequence) for name, sequence in latest.items())
        async with self._news:
            self._latest.update(latest)
            self._news.notify_all()
        return grown


def rewards_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["rewards"])
    services = context.services
    feed = RewardFeed(services)

    @router.get("/v1/rewards")
    async def list_rewards(request: Request) -> Response:
        """Return revisions in order of emission, `limit` from the next after `after`; `next` is where to go on.

        With `before` they are returned from the one before it down, the newest first. Where they are large there are
        fewer than `limit`; after the last page there is an empty one."""
        identity = identity_of(request)
        only_parameters(request, "after", "before", "limit")
        after = whole_number(request, "after", 0, LARGEST_INTEGER)
        before = whole_number(request, "before", LARGEST_INTEGER, LARGEST_INTEGER)
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _PAGE, least=1)
        if "before" in request.query_params:
            if "after" in request.query_params:
                raise InvalidRequest("after, before: give only one of them", param="before")
            latest = await read(
                services, lambda view: view.rewards.latest(identity.namespace, before, limit, MOST_BYTES)
            )
            data = [described(sequence, reward) for sequence, reward in latest]
            return json_response({"object": "list", "data": data, "next": latest[-1][0] if latest else before})
        page = await read(services, lambda view: view.rewards.after(identity.namespace, after, limit, MOST_BYTES))
        data = [described(sequence, reward) for sequence, reward in page]
        return json_response({"object": "list", "data": data, "next": page[-1][0] if page else after})

    @router.get("/v1/rewards/stream", response_class=_EventStream)
    async def stream_rewards(request: Request) -> Response:
        """Stream revisions as server-sent events, with `Last-Event-ID` (or `after`) from there on, else from now.

        The stream ends with its key: whoever opens it again then hears why."""
        identity = identity_of(request)
        only_parameters(request, "after")
        after = _last_event_id(request)
        if after is None:
            after = await read(services, lambda view: view.rewards.last_sequence(identity.namespace))
        events = _events(feed, identity.namespace, after, partial(is_still_let_in, context, request))
        return _EventStream(events, headers={"cache-control": "no-cache"})

    @router.get("/v1/rewards/{inference_id}")
    async def explain_reward(request: Request, inference_id: str) -> Response:
        """Return the outcomes of one turn and its session, and each revision of its reward with components and reason.

        Only what has reached the store is there."""
        identity = identity_of(request)
        only_parameters(request)
        found = None
        if is_id(inference_id):
            found = await look_up(services, lambda view: _story(view, identity, inference_of(inference_id)))
        if found is None:
            raise NotFound(f"no inference {inference_id}", param="inference_id", code="unknown_inference")
        return json_response(found)

    return router


def _story(view: View, identity: Identity, inference_id: InferenceId) -> dict[str, Any] | None:
    turn = view.turns.get(identity.namespace, inference_id)
    if turn is None or not identity.sees(turn):
        return None
    bounds = MOST_OUTCOMES, MOST_BYTES
    outcomes = view.outcomes.newest_of_turns(identity.namespace, [inference_id], *bounds)
    of_session = view.outcomes.newest_of_session(identity.namespace, turn.session_id, *bounds)
    outcomes += [outcome for outcome in of_session if outcome.inference_id is None]
    seen = [outcome for outcome in outcomes if identity.sees(outcome)]
    rewards = view.rewards.newest_of_turns([inference_id], MOST_REWARDS, MOST_BYTES)
    fields = to_builtins(turn)
    return {
        **{name: fields[name] for name in _TURN_FIELDS},
        "stored": turn.unstored is None,
        "completion_tokens": turn.num_output_tokens,
        "outcomes": [plain(outcome) for outcome in seen],
        "rewards": [plain(each) for each in as_seen(rewards, identity, seen)],
    }


def _last_event_id(request: Request) -> int | None:
    text = request.headers.get("last-event-id")
    if text is not None:
        sequence = digits(text, LARGEST_INTEGER)
        if sequence is None:
            raise InvalidRequest("Last-Event-ID: must be the id of an event of this stream", param="Last-Event-ID")
        return sequence
    return whole_number(request, "after", 0, LARGEST_INTEGER) if "after" in request.query_params else None


async def _events(
    feed: RewardFeed, namespace: Namespace, after: int, may_go_on: Callable[[], bool]
) -> AsyncIterator[bytes]:
    yield b": open\n\n"
    caught_up = is_away = False
    while True:
        if is_away:  # what is known to be there would be asked for without a pause
            await asyncio.sleep(_POLL_S)
        is_news = not caught_up or await feed.wait(namespace, after, _HEARTBEAT_S)
        if not may_go_on():
            return
        if not is_news:
            yield b": still here\n\n"
            continue
        caught_up = True
        try:
            page = await feed.page(namespace, after)
        except StoreUnavailable:
            is_away = True
            continue
        is_away = False
        after, caught_up = page.last, not page.is_full
        if page.events:
            yield page.events  # the next is read once the client has taken this
        del page


def _page(view: View, namespace: Namespace, after: int) -> _Page:
    """Read the next rewards, as many as a page holds, and at least one where there is any.

    Text may be six times as long in JSON as in the store, so its events are measured, too."""
    events = bytearray()
    last = after
    for sequence, reward in view.rewards.after(namespace, after, _PAGE, _PAGE_BYTES):
        event = b"id: %d\ndata: %s\n\n" % (sequence, msgspec.json.encode(described(sequence, reward)))
        if events and len(events) + len(event) > _PAGE_BYTES:
            break
        events += event
        last = sequence
    return _Page(bytes(events), last, is_full=last < view.rewards.last_sequence(namespace))


def described(sequence: int, reward: Reward) -> dict[str, Any]:
    return {"sequence": sequence, **plain(reward)}


def as_seen(rewards: Iterable[Reward], identity: Identity, outcomes: Iterable[Outcome]) -> list[Reward]:
    """Return rewards without the words, texts and names of others; `outcomes`: those that the caller may see."""
    if "read" in identity.scopes:
        return list(rewards)
    told = {outcome.outcome_id for outcome in outcomes}
    return [_without_others(reward, identity, told) for reward in rewards]


def _without_others(reward: Reward, identity: Identity, told: Collection[OutcomeId]) -> Reward:
    is_own = identity.user is not None and reward.edited_by == identity.user
    return msgspec.structs.replace(
        reward,
        hints=tuple(hint for hint in reward.hints if hint.outcome_id in told),
        edits=reward.edits if is_own else (),
        edited_by=reward.edited_by if is_own else None,
        said_by=tuple(user for user in reward.said_by if user == identity.user),
        outcome_ids=tuple(each for each in reward.outcome_ids if each in told),
    )


def plain(event: Reward | Outcome) -> dict[str, Any]:
    """Return an event's fields, as stories show them: of evidence the beginning, since there may be much of it.

    `GET /v1/feedback/{feedback_id}` shows all of one."""
    fields: dict[str, Any] = to_builtins(event)
    del fields["type"]
    if fields.get("evidence") is not None:
        fields["evidence"] = fields["evidence"][:_SHOWN_CHARACTERS]
    return fields
