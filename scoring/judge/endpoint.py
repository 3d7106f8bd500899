"""The endpoint that judges: OpenAI's chat completions over HTTP, with retries and within a time limit."""

import asyncio
import random
from typing import Any, Final, Literal

import httpx

from core import telemetry
from core.errors import ConfigError, OnwardError
from core.network.chat_endpoint import SHOWN, ChatEndpoint, NoAnswer, text_of
from core.settings import JudgeSettings
from scoring.judge.prompt import Message, read_prompt
from scoring.judge.votes import Vote, read_vote

Reason = Literal["timeout", "rate_limited", "unavailable", "refused", "unparseable"]
_AGAIN: Final[frozenset[Reason]] = frozenset({"timeout", "rate_limited", "unavailable"})
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0


class NoVote(OnwardError):
    """A failed vote. `after_s`: how long the endpoint asks to wait before the next request, if it says so."""

    def __init__(self, reason: Reason, detail: str, after_s: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.after_s = after_s


class JudgeEndpoint:
    """The endpoint; to be used in one event loop."""

    def __init__(self, settings: JudgeSettings) -> None:
        assert settings.base_url is not None
        self._settings = settings
        self._server = ChatEndpoint(settings.base_url, settings.api_key)
        self._free = asyncio.Semaphore(settings.requests.under_way)
        self._takes_format = True  # until it says otherwise

    async def aclose(self) -> None:
        await self._server.aclose()

    async def votes(self, messages: list[Message]) -> list[Vote | NoVote]:
        """Return one vote for each seed, all within the time that a turn has."""
        until_s = asyncio.get_running_loop().time() + self._settings.requests.give_up_s
        votes = self._settings.requests.votes
        return await asyncio.gather(*(self._vote(messages, seed, until_s) for seed in range(votes)))

    async def _vote(self, messages: list[Message], seed: int, until_s: float) -> Vote | NoVote:
        try:
            async with asyncio.timeout_at(until_s):
                return await self._persist(messages, seed, until_s)
        except NoVote as error:
            return error
        except TimeoutError:
            return NoVote("timeout", f"no vote within {self._settings.requests.give_up_s:g} s")

    async def _persist(self, messages: list[Message], seed: int, until_s: float) -> Vote:
        """Try again for as long as it may help, each time after a longer pause."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async with self._free:
                    vote = await self._ask(messages, seed)
            except NoVote as error:
                telemetry.JUDGE_REQUESTS.labels(result=error.reason).inc()
                wait_s = max(pause_s * random.uniform(0.5, 1.0), error.after_s or 0.0)
                if error.reason not in _AGAIN or asyncio.get_running_loop().time() + wait_s >= until_s:
                    raise
            else:
                telemetry.JUDGE_REQUESTS.labels(result="vote").inc()
                return vote
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _ask(self, messages: list[Message], seed: int) -> Vote:
        """Ask once. Raises NoVote."""
        response = await self._post(messages, seed, with_format=self._takes_format)
        if response.status_code in (400, 422) and self._takes_format:
            plain = await self._post(messages, seed, with_format=False)
            if plain.status_code == 200:
                self._takes_format, response = False, plain
        return _read(response)

    async def _post(self, messages: list[Message], seed: int, *, with_format: bool) -> httpx.Response:
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": messages,
            "temperature": self._settings.requests.temperature,
            "seed": seed,
        }
        if self._settings.requests.max_tokens is not None:
            body["max_tokens"] = self._settings.requests.max_tokens
        if with_format:
            body["response_format"] = {"type": "json_object"}
        try:
            async with asyncio.timeout(self._settings.requests.timeout_s):
                return await self._server.post(body)
        except TimeoutError:
            raise NoVote("timeout", f"no answer within {self._settings.requests.timeout_s:g} s") from None
        except NoAnswer as error:
            raise NoVote("unavailable", str(error)) from error


def _read(response: httpx.Response) -> Vote:
    status, shown = response.status_code, response.text[:SHOWN]
    if status == 429:
        raise NoVote("rate_limited", shown, _pause_of(response))
    if status in (408, 409) or status >= 500:
        raise NoVote("unavailable", f"{status}: {shown}", _pause_of(response))
    if status != 200:
        raise NoVote("refused", f"{status}: {shown}")
    try:
        said = text_of(response)
    except ValueError as error:
        raise NoVote("unparseable", str(error)) from error
    try:
        return read_vote(said)
    except ValueError as error:
        raise NoVote("unparseable", f"{error}: {said[:SHOWN]}") from error


def _pause_of(response: httpx.Response) -> float | None:
    """Return the seconds that the response asks to wait; dates are ignored."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return None


def try_endpoint(settings: JudgeSettings) -> Vote:
    """Ask for one vote, once, on a tiny conversation. Raises ConfigError with what is wrong."""
    data = '{"conversation": [{"role": "user", "content": "2 + 2?"}], "answer": {"text": "4"}}'
    messages = [
        {"role": "system", "content": read_prompt(settings.prompt)},
        {"role": "user", "content": f"BEGIN try\n{data}\nEND try"},
    ]

    async def ask() -> Vote:
        endpoint = JudgeEndpoint(settings)
        try:
            return await endpoint._ask(messages, 0)
        finally:
            await endpoint.aclose()

    try:
        return asyncio.run(ask())
    except NoVote as error:
        raise ConfigError(f"judge.base_url: {settings.base_url}: {error}") from error
