"""The engine's exact output: ids, behaviour log-probabilities, and the version that sampled each token."""

import math

from core.events import GrammarMasks, VersionSpan
from core.grammars import sets
from core.ids import PolicyRef
from core.ports import Clock, TokenChunk


class Capture:
    """The output of one turn. Nothing is ever padded, cut or made up here: incomplete output is a fault."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.grammar: GrammarMasks | None = None
        self.cached_tokens = 0
        self.replica: str | None = None
        self.first_token_s: float | None = None  # monotonic
        self._allowed: list[tuple[int, ...]] = []
        self._allowed_ids = 0
        self._reasons: dict[str, None] = {}
        self._spans: tuple[VersionSpan, ...] | None = None
        self._guessed = False
        self._version_starts: list[tuple[int, PolicyRef]] = []
        self._last_version: PolicyRef | None = None

    def take(self, chunk: TokenChunk, clock: Clock) -> None:
        if self.first_token_s is None:
            self.first_token_s = clock.monotonic()
            self.cached_tokens = chunk.cached_tokens or 0
            self.replica = chunk.replica
        version = chunk.version
        if version is not self._last_version and version != self._last_version and chunk.token_ids:
            self._last_version = version
            self._version_starts.append((len(self.token_ids), version))
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        if chunk.top_logprobs:  # this and the following are rare, and there are many chunks
            self.top_logprobs += chunk.top_logprobs
        if chunk.grammar is not None:
            self.grammar = chunk.grammar
        if chunk.allowed:
            self._take_sets(chunk.allowed)
        if chunk.untrainable_reasons:
            self._reasons |= dict.fromkeys(chunk.untrainable_reasons)
        if not chunk.confirmed:
            self._guessed = True
        if chunk.version_spans is not None:
            self._spans = chunk.version_spans

    def _take_sets(self, allowed: tuple[tuple[int, ...], ...]) -> None:
        """Keep the sets of ids that the tokens were sampled from, up to the bound of all of them together."""
        self._allowed_ids += sum(map(len, allowed))
        if self._allowed_ids > sets.MAX_IDS:
            self._allowed = []
            self._reasons[sets.TOO_LARGE] = None
        else:
            self._allowed += allowed

    @property
    def attachments(self) -> dict[str, str]:
        """Return what is recorded of the tokens beside what every turn has: their sets of ids, where they have any."""
        return {sets.ATTACHMENT: sets.pack(self._allowed)} if self._allowed else {}

    @property
    def first_version(self) -> PolicyRef | None:
        return self._version_starts[0][1] if self._version_starts else None

    def version_spans(self) -> tuple[VersionSpan, ...]:
        if self._spans is not None:
            return self._spans
        ends = [start for start, _ in self._version_starts[1:]] + [len(self.token_ids)]
        return tuple(
            VersionSpan(start=start, end=end, version=version)
            for (start, version), end in zip(self._version_starts, ends, strict=False)  # no tokens: no start
        )

    def faults(self) -> tuple[str, ...]:
        """Return the reasons why nothing can be learned from the output; () when it is whole."""
        faults = list(self._reasons)
        if not self.token_ids:
            faults.append("no_tokens")
        if len(self.logprobs) != len(self.token_ids) or not all(map(math.isfinite, self.logprobs)):
            faults.append("missing_logprobs")
        if not _tile(self.version_spans(), len(self.token_ids)):
            faults.append("unknown_version")
        if self._guessed and self._spans is None:
            faults.append("unconfirmed_version")
        return tuple(faults)


def _tile(spans: tuple[VersionSpan, ...], length: int) -> bool:
    """Return whether every token is in exactly one span."""
    starts, ends = [span.start for span in spans], [span.end for span in spans]
    return [*starts, length] == [0, *ends] if spans else length == 0
