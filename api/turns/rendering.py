"""The rendering of one request's prompt to tokens.

It runs on the event loop for short prompts, on a thread for longer ones, and in the reader's process for large ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.background import on_a_thread
from api.http.body_shape import Raw
from api.requests.jobs import BodyKind, CheckBody, Extend, Job, Render, RenderText

T = TypeVar("T")
Tokens = tuple[int, ...]
_ON_LOOP_CHARACTERS = 8192  # about 5 ms
_OF_A_MESSAGE = 64  # what a message costs beside its text, in characters


async def read_large_apart(
    context: ApiContext, kind: BodyKind, raw: Raw, understand: Callable[[], T], identity: Identity | None = None
) -> T:
    """Return what `understand` makes of a body, of a large one after a check in the reader. Raises RequestError.

    `identity`: whose words it redacts; None where it redacts none."""
    if not context.bodies.is_large(len(raw)):
        return understand() if identity is None else await away_if_large(context, identity, len(raw), understand)
    await context.reader.ask(CheckBody(kind, context.services.settings.bodies.values), raw)
    return await context.reader.away(understand)


async def away_if_large(context: ApiContext, identity: Identity, body_bytes: int, work: Callable[[], T]) -> T:
    """Do work on a request, on a thread where its body, which has been checked, is large. Raises as the work does.

    Where the caller's words are redacted, a smaller body is much work, too."""
    if context.bodies.is_large(body_bytes):
        return await context.reader.away(work)
    if context.redactors.is_slow(identity.namespace, body_bytes):
        return await on_a_thread(work)
    return work()


class Rendering:
    def __init__(self, context: ApiContext, body_bytes: int) -> None:
        self._context = context
        self._renderer = context.services.renderer
        self._body_bytes = body_bytes

    async def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Tokens:
        """Render messages as in core.ports.Renderer; the other methods follow it, too."""
        return await self._where(
            self._body_bytes, lambda: self._renderer.render(messages, tools), lambda: Render(messages, tools)
        )

    async def extend(
        self, token_ids: Tokens, messages: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]
    ) -> Tokens:
        size = sum(_OF_A_MESSAGE + len(message["content"]) for message in messages)
        last = token_ids[-1:]
        if not self._context.bodies.is_large(size):
            return await self._where(size, lambda: self._renderer.extend(token_ids, messages, calls), None)
        return token_ids[: len(token_ids) - len(last)] + await self._context.reader.ask(Extend(last, messages, calls))

    async def render_text(self, prompt: str, suffix: str | None) -> Tokens:
        return await self._where(
            self._body_bytes, lambda: self._renderer.render_text(prompt, suffix), lambda: RenderText(prompt, suffix)
        )

    async def _where(self, size: int, render: Callable[[], Tokens], job: Callable[[], Job] | None) -> Tokens:
        if size < _ON_LOOP_CHARACTERS:
            return render()
        if job is None or not self._context.bodies.is_large(size):
            return await on_a_thread(render)
        return await self._context.reader.ask(job())
