"""The model: what generates, and what makes tokens of words and words of tokens."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from core.events import FinishReason, Grammar, GrammarMasks, Priority, Sampling, ToolCall, VersionSpan
from core.grammars.wanted import WantedAnswer
from core.ids import InferenceId, PolicyRef
from core.operations.fleet import Assignment


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    inference_id: InferenceId
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    top_logprobs: int = 0
    version: PolicyRef | None = None  # None: whatever is live, following swaps
    cache_key: str | None = None  # requests with one key go to one replica, where their prefix is: the session
    cache_scope: str | None = None  # only requests of one scope go on from what another has computed or compiled
    remember: bool = True  # False: the engine's cache keeps nothing of it, where the engine can be told so
    priority: Priority = "normal"  # low: it waits for all others, and is paused for them; its tokens stay exact
    streamed: bool = (
        True  # False: nobody waits for a token but the first and the last, so those between may come together
    )
    is_case: bool = False  # nobody's: who answers it does not serve users yet


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Newly sampled tokens, each with its behaviour log-probability and all from one policy version."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: PolicyRef  # UNKNOWN where the engine names none of ours
    confirmed: bool = True  # whether `version` is certain without the `version_spans` of the last chunk
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    grammar: GrammarMasks | None = None  # of all tokens so far; None: they followed no grammar
    allowed: tuple[tuple[int, ...], ...] = ()  # each token's set of ids, where top-k, top-p or min-p made one
    finish_reason: FinishReason | None = None
    replica: str | None = None
    cached_tokens: int | None = None  # of the prompt, known with the first chunk
    untrainable_reasons: tuple[str, ...] = ()  # what the engine could not vouch for
    version_spans: tuple[VersionSpan, ...] | None = None
    """With the last chunk, where the engine tells only then for sure: over all tokens, instead of the chunks' own."""


class Policy(Protocol):
    """Generates. `capture` says what the engine can vouch for."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield chunks as they are sampled; the last has a finish_reason. Closing the iterator aborts the request.

        A token of `stop_token_ids` ends the answer and is part of it; an engine may also end it at the model's own
        end-of-text tokens. `sampling.seed` is best effort, as in OpenAI's API: an engine that cannot repeat itself
        ignores it. Raises EngineUnavailable (after the first chunk only when the engine is lost), InvalidRequest for
        what the model cannot do."""
        ...

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        """Return why turns sampled like this cannot be trained on (only exact samples can); () when they can."""
        ...

    @property
    def live_version(self) -> PolicyRef: ...

    @property
    def context_length(self) -> int: ...


class Traffic(Protocol):
    """Assigns users to versions: the arms of the running experiment."""

    def assign(self, unit: str) -> Assignment:
        """Return a unit's arm: the same unit has the same arm while an experiment runs. Never blocks.

        A unit is a user's hash, or the session where there is no user."""
        ...


class OutputDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the answer that newly decoded tokens add."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()  # complete calls, in order
    broken_calls: int = 0  # begun, and found to be none: content
    thinking_ended: bool = False


class OutputParser(Protocol):
    """Turns one answer's tokens into thinking, content and tool calls, incrementally. Never emits half a character."""

    def feed(self, token_ids: Sequence[int]) -> OutputDelta: ...

    def finish(self) -> OutputDelta:
        """Return what was held back. An incomplete tool call is returned as content."""
        ...


class Renderer(Protocol):
    """Messages to token ids and back, for one model. Imports no torch."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer_digest(self) -> str: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    @property
    def tools_refused(self) -> str | None:
        """Why the model cannot be shown tools; None where it can."""
        ...

    @property
    def late_system_refused(self) -> str | None:
        """Why the model cannot be shown a system message behind others; None where it can."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the prompt, up to where the assistant speaks. Raises InvalidRequest naming the message."""
        ...

    def extend(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        calls: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Continue `token_ids` (a prompt and its answer, as sampled) by the new messages; `calls` are the answer's.

        The returned prompt begins with exactly those tokens. An answer that was cut off is closed."""
        ...

    def render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        """Return a raw completion's prompt; with a suffix in the model's fill-in-the-middle form.

        Raises InvalidRequest when the model has no such form."""
        ...

    def answer_tokens(self, text: str, *, is_first: bool) -> tuple[int, ...]:
        """Return the tokens of a text as a part of an answer, in which no mark is more than its characters.

        `is_first`: nothing stands before it in the answer. Raises InvalidRequest for a text of too many tokens."""
        ...

    def parser(self, *, tools: Sequence[Mapping[str, Any]] | None = None, after: Sequence[int] = ()) -> OutputParser:
        """Return the parser of one answer to a chat, which may call these tools, after the prompt's tokens.

        Without `tools` (none at all, not an empty list of them) it is one of text that merely goes on."""
        ...

    @property
    def call_grammar_refused(self) -> str | None:
        """Why there is no grammar of the model's calls of tools; None where there is one."""
        ...

    def grammar(self, wanted: WantedAnswer, after: Sequence[int], scope: str | None = None) -> Grammar:
        """Return the grammar of the wanted answer to a prompt, of which it is known that it compiles within the bounds.

        It may take seconds, but where the same `scope` has asked for it: keep it off the event loop. Raises
        InvalidRequest naming the field whose schema is none, says what no grammar can, or is beyond the bounds;
        Overloaded where that cannot be found out now."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as text, for `logprobs`; bytes that are no character alone become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes: ...
