"""Reads one answer of an engine, event by event: the new tokens, their log-probabilities, and the version of each.

No document of SGLang's says this (0.5.23, srt/managers/tokenizer_manager.py):

- With --incremental-streaming-output an event holds only the new tokens, otherwise those of all steps so far, and then
  perhaps more than its own `completion_tokens`, which is right.
- While an answer runs, `weight_version` is the server's label when it *writes* the event; tokens that were sampled just
  before a swap may come with the new label. Only the last event has the sampler's own spans. A request whose label did
  not change, and that was not sent back to the queue (as a swap does with all of them), certainly has one version.
"""

import math

import msgspec

from core.errors import EngineUnavailable, NotFinite
from core.events import FinishReason, VersionSpan
from core.ids import UNKNOWN, PolicyRef
from core.ports import TokenChunk
from serving.engines.sglang.generation.refusals import refusal
from serving.engines.sglang.generation.spans import Speaker, version_of, version_spans, within
from serving.engines.sglang.generation.wire import Event, MetaInfo, TopEntry

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_UNKNOWN_VERSION = "unknown_version"
_OTHER_LOGPROBS = "logprobs_of_other_tokens"


class EngineAnswer:
    """Feed it each event; it tells the chunks."""

    def __init__(self, where: str, speaker: Speaker = version_of) -> None:
        """`where` names the engine in errors; `speaker` turns a label into a version."""
        self._where, self._speaker = where, speaker
        self._told = 0  # tokens
        self._begun: tuple[str | None, int] | None = None  # the label with the first token, and no retractions
        self._certain = True
        self.queue_s: float | None = None  # that it waited before its first token, where the engine tells

    def take(self, event: Event) -> list[TokenChunk]:
        """Return the chunks of an event; the last chunk has a finish_reason.

        Raises InvalidRequest for what the engine refused, EngineUnavailable for an answer that it aborted before the
        first token, or that lacks some, NotFinite for one sampled from logits that are not finite: with NaN the engine
        samples on, and reports a log-probability that is none."""
        if event.error is not None:
            raise refusal(self._where, event.error.code, event.error.message)
        meta = event.meta_info
        finish = self._finish(meta)
        # What an abort repeats cannot be told from what it adds, and nobody waits for that any more.
        start, end = self._told, self._told if finish == "abort" else meta.completion_tokens
        if start == end and finish is None:
            return []
        self._told = end
        self._watch(meta)
        spans = (
            None
            if finish is None or meta.weight_versions is None
            else version_spans(meta.weight_versions, end, self._speaker)
        )
        chunks = self._chunks(event, start, end, spans)
        if finish is not None:
            chunks[-1] = _last(chunks[-1], finish, spans)
        if start == 0:
            self.queue_s = meta.queue_time
            chunks[0] = msgspec.structs.replace(chunks[0], cached_tokens=meta.cached_tokens)
        return chunks

    def _finish(self, meta: MetaInfo) -> FinishReason | None:
        finish = meta.finish_reason
        if finish is None:
            return None
        if finish.status_code is not None:  # it may come with a token that nobody asked for
            raise refusal(self._where, finish.status_code, finish.message)
        if finish.type not in _FINISHED or (finish.type == "abort" and not self._told):
            raise EngineUnavailable(f"{self._where} gave the request up: {finish.type} {finish.message}")
        return _FINISHED[finish.type]

    def _watch(self, meta: MetaInfo) -> None:
        self._begun = self._begun or (meta.weight_version, 0)
        self._certain = self._certain and (meta.weight_version, meta.num_retractions) == self._begun

    def _chunks(self, event: Event, start: int, end: int, spans: tuple[VersionSpan, ...] | None) -> list[TokenChunk]:
        """Tokens [start, end) of the answer, a chunk for each version that spoke; at least one chunk."""
        count = end - start
        is_whole = start > 0 and len(event.output_ids) >= end
        first = start if is_whole else 0
        token_ids = tuple(event.output_ids[first : first + count])
        if len(token_ids) != count:
            raise EngineUnavailable(f"{self._where} lost tokens of an answer")
        entries = event.meta_info.output_token_logprobs[first : first + count]
        tops = event.meta_info.output_top_logprobs[first : first + count]
        label = self._speaker(event.meta_info.weight_version)
        parts = within((VersionSpan(start=start, end=end, version=label),) if spans is None else spans, start, end)
        return [
            self._chunk(token_ids[low:high], entries[low:high], tops[low:high], part.version)
            for part in parts
            for low, high in [(part.start - start, part.end - start)]
        ] or [self._chunk((), [], [], spans[-1].version if spans else label)]

    def _chunk(
        self, token_ids: tuple[int, ...], entries: list[TopEntry], tops: list[list[TopEntry] | None], version: PolicyRef
    ) -> TokenChunk:
        reasons: tuple[str, ...] = (_UNKNOWN_VERSION,) if version == UNKNOWN else ()
        if any(entry[0] is None or not math.isfinite(entry[0]) for entry in entries):
            raise NotFinite(version, self._where)
        if any(entry[1] != token for entry, token in zip(entries, token_ids, strict=False)):
            reasons += (_OTHER_LOGPROBS,)
        return TokenChunk(
            token_ids=token_ids,
            logprobs=tuple([_number(entry) for entry in entries]),
            version=version,
            confirmed=self._certain,
            top_logprobs=tuple([tuple([(each[1], _number(each)) for each in top or ()]) for top in tops]),
            untrainable_reasons=reasons,
        )


def _last(chunk: TokenChunk, finish: FinishReason, spans: tuple[VersionSpan, ...] | None) -> TokenChunk:
    """Return the last chunk.

    Its spans may name an unknown version for tokens that were sent before, with the label that came after them."""
    strange = (_UNKNOWN_VERSION,) if any(span.version == UNKNOWN for span in spans or ()) else ()
    reasons = tuple(dict.fromkeys((*chunk.untrainable_reasons, *strange)))
    return msgspec.structs.replace(chunk, finish_reason=finish, version_spans=spans, untrainable_reasons=reasons)


def _number(entry: TopEntry) -> float:
    """JSON has no NaN: where the model computed none, nothing is said."""
    return math.nan if entry[0] is None else entry[0]
