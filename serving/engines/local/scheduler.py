"""The engine's thread: between two steps requests join, leave and change versions.

A step is one forward pass for each version that serves, over all rows that decode and as many prompt tokens as the
settings allow. (Continuous batching: Orca, OSDI 2022; prompts in chunks beside decoding rows: Sarathi-Serve, arXiv
2403.02310.)"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TypeVar

from core import telemetry
from core.errors import EngineUnavailable, InvalidRequest, NotFinite, OnwardError
from core.ids import PolicyRef
from core.ports import TokenChunk
from core.settings import LocalEngineSettings
from serving.engines.busy import BusyTime
from serving.engines.local import sequence
from serving.engines.local.attention import Row
from serving.engines.local.model import Decoder, slot_cache
from serving.engines.local.sampler import Samples, sample
from serving.engines.local.slots import SlotTable
from serving.engines.local.stream import Outbox, Token

T = TypeVar("T")
logger = logging.getLogger(__name__)
FirstToken = Callable[[PolicyRef, datetime], None]


class Scheduler:
    """`models` is shared with the engine, which adds versions; only this thread takes them away."""

    def __init__(
        self, models: dict[PolicyRef, Decoder], live: PolicyRef, settings: LocalEngineSettings, context_length: int
    ) -> None:
        self.models = models
        self.live = live
        self.on_first_token: FirstToken | None = None
        self._prefill_tokens = settings.prefill_tokens
        self._cache = slot_cache(models[live].model, settings.slots, context_length)
        self._slots = SlotTable(settings.slots, context_length)
        self._running: list[sequence.Sequence] = []
        self._busy = BusyTime()
        self._waiting: deque[sequence.Sequence] = deque()
        self._spoke: set[PolicyRef] = set()  # since it last went live
        self._outbox = Outbox()
        self._inbox: deque[sequence.Sequence] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # over `_open` and what is put in while it is true
        self._open = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ------------------------------------------------------------------------------- for other threads

    def start(self) -> None:
        self._open = True
        self._thread.start()

    def close(self) -> None:
        """End all requests with `abort`, and the thread."""
        with self._lock:
            was_open, self._open = self._open, False
        self._wake.set()
        if was_open:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, new: sequence.Sequence) -> None:
        with self._lock:
            if not self._open:
                raise EngineUnavailable("the engine is not running")
            self._inbox.append(new)
        self._wake.set()

    def between_steps(self, action: Callable[[], T]) -> T:
        """Run `action` on the engine's thread while no step runs; at once where there is no thread."""
        done: Future[T] = Future()

        def command() -> None:
            try:
                done.set_result(action())
            except (OnwardError, RuntimeError) as error:
                done.set_exception(error)
            finally:
                if not done.done():  # a defect, which ends the thread: the caller must not wait for it
                    done.set_exception(EngineUnavailable("the engine's thread ended, see the log"))

        with self._lock:
            is_running = self._open
            if is_running:
                self._commands.append(command)
        if not is_running:
            return action()
        self._wake.set()
        return done.result()

    # ------------------------------------------------------------------------------- for commands

    def switch(self, version: PolicyRef) -> None:
        self.live = version
        self._spoke.discard(version)
        telemetry.POLICY_VERSION.set(version.version)

    def users(self, version: PolicyRef) -> int:
        """Return the number of requests pinned to `version`."""
        return sum(each.pin == version for each in (*self._running, *self._waiting, *self._inbox))

    # ------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        ended_well = False
        try:
            self._loop()
            ended_well = True
        finally:
            if not ended_well:
                self._abandon()

    def _loop(self) -> None:
        while self._open:
            if not (self._running or self._waiting or self._inbox or self._commands):
                self._wake.wait()
            self._wake.clear()
            self._run_commands()
            try:
                self._step()
            except (OnwardError, RuntimeError) as error:
                # What torch meets in a step belongs to its requests; the engine goes on serving others.
                logger.exception("the engine's step failed")
                self._give_up(f"{type(error).__name__}: {error}")
            self._outbox.send()
        self._run_commands()
        self._end_all()

    def _abandon(self) -> None:
        """Fail all requests after a defect ended the thread, so that nobody waits for it."""
        with self._lock:
            self._open = False
        self._running += [*self._waiting, *self._inbox]
        self._give_up("its thread ended, see the log")
        self._run_commands()
        self._outbox.send()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _step(self) -> None:
        self._admit()
        for version in dict.fromkeys(self._version_of(each) for each in self._running):
            self._serve(version, [each for each in self._running if self._version_of(each) == version])
        self._running = [each for each in self._running if each.slot >= 0]
        self._busy.running(len(self._running))
        telemetry.WAITING_REQUESTS.set(len(self._waiting))

    def _version_of(self, each: sequence.Sequence) -> PolicyRef:
        return self.live if each.pin is None else each.pin

    def _admit(self) -> None:
        while self._inbox:
            self._waiting.append(self._inbox.popleft())
        for each in self._running:
            if each.aborted:
                self._free(each)
        self._running = [each for each in self._running if each.slot >= 0]
        self._waiting = deque(each for each in self._waiting if not each.aborted)
        for _ in range(min(len(self._waiting), self._slots.num_free)):
            each = self._waiting.popleft()
            telemetry.QUEUE_SECONDS.observe(time.monotonic() - each.arrived_s)
            each.computed_under = self._version_of(each)
            place = self._slots.take(each.tokens, each.under)
            each.slot, each.computed, each.cached_tokens = place.slot, place.cached, place.cached
            if place.source != place.slot:
                self._cache.copy(place.source, place.slot, place.cached)
            telemetry.CACHED_TOKENS.inc(each.cached_tokens)
            self._running.append(each)

    def _serve(self, version: PolicyRef, group: list[sequence.Sequence]) -> None:
        """One step of the requests of one version."""
        for each in group:
            if each.computed_under != version:
                telemetry.REPREFILLED_TOKENS.inc(each.computed)
                each.computed, each.computed_under = 0, version
                self._slots.unshare(each.slot)
        # In the order of their slots, so that neighbours are read in place.
        decoding = sorted((each for each in group if each.pending == 1), key=lambda each: each.slot)
        chunks = [(each, 1) for each in decoding] + self._prefills(group)
        rows = [Row(each.slot, each.computed, each.computed + count) for each, count in chunks]
        tokens = [token for each, count in chunks for token in each.tokens[each.computed : each.computed + count]]
        logits_RV = self.models[version].forward(self._cache, rows, tokens)
        telemetry.PREFILLED_TOKENS.inc(len(tokens) - len(decoding))
        for each, count in chunks:
            each.computed += count
        ready = [index for index, (each, _) in enumerate(chunks) if each.pending == 0 and self._finds_mask(each)]
        if ready:
            ready_RV = logits_RV if len(ready) == len(chunks) else logits_RV[ready]
            self._take(version, [chunks[index][0] for index in ready], sample(ready_RV, [chunks[i][0] for i in ready]))

    def _finds_mask(self, each: sequence.Sequence) -> bool:
        """Find which ids may come next; a request whose grammar is beyond the bounds here ends, and no other."""
        if each.masks is not None:
            try:
                each.mask = each.masks.next()
            except InvalidRequest as error:
                self._outbox.add(each.stream, error)
                self._free(each)
                return False
        return True

    def _prefills(self, group: Sequence[sequence.Sequence]) -> list[tuple[sequence.Sequence, int]]:
        """Choose prompt chunks, first come, first served, within the budget of one step.

        A chunk of one token is a decode row, and comes first."""
        budget, chunks = self._prefill_tokens, []
        for each in group:
            if each.pending > 1 and budget:
                count = min(each.pending, budget)
                budget -= count
                chunks.append((each, count))
        return sorted(chunks, key=lambda chunk: chunk[1] != 1)

    def _take(self, version: PolicyRef, group: Sequence[sequence.Sequence], samples: Samples) -> None:
        taken = 0
        for index, (each, token_id, logprob) in enumerate(zip(group, samples.token_ids, samples.logprobs, strict=True)):
            if not math.isfinite(logprob):
                self._fail(each, version)
                continue
            taken += 1
            if each.request.remember and not self._slots.is_shared(each.slot):
                self._slots.share(each.slot, each.tokens[: each.computed], each.under)
            finish = each.take(token_id)
            grammar = None if each.masks is None else each.masks.record()
            allowed = samples.sets.get(index)
            each.ids_to_tell -= len(allowed or ())
            told = Token(token_id, logprob, version, samples.tops.get(index), finish, allowed, grammar)
            self._outbox.add(each.stream, told)
            if finish is not None:
                self._free(each)
        telemetry.GENERATED_TOKENS.inc(taken)
        if taken and version not in self._spoke and not all(each.request.is_case for each in group):
            self._spoke.add(version)
            if self.on_first_token is not None:
                self.on_first_token(version, datetime.now(UTC))

    def _fail(self, each: sequence.Sequence, version: PolicyRef) -> None:
        """One row is not finite: it alone ends, and leaves nothing behind that another could go on from."""
        logger.error("version %s computes no finite numbers for request %s", version, each.request.inference_id)
        telemetry.NOT_FINITE_ROWS.inc()
        self._outbox.add(each.stream, NotFinite(version))
        self._free(each, is_finite=False)

    def _free(self, each: sequence.Sequence, *, is_finite: bool = True) -> None:
        """Free a slot; a half-computed prompt in it was never sampled from, so nothing shows that it is finite."""
        is_seen = each.pending <= 1 and len(each.tokens) > each.prompt_tokens
        is_finite = is_finite and (is_seen or self._cache.is_finite(each.slot, each.computed))
        if not is_finite:
            self._cache.clear_slot(each.slot)
        tokens = each.tokens[: each.computed] if is_finite and each.request.remember else []
        self._slots.release(each.slot, tokens, each.under)
        each.slot = -1

    def _give_up(self, why: str) -> None:
        """End all running requests, and trust no slot."""
        for each in self._running:
            self._outbox.add(each.stream, EngineUnavailable(f"the engine failed: {why}"))
        self._running = []
        self._slots.forget()
        self._cache.clear()

    def _end_all(self) -> None:
        for each in (*self._running, *self._waiting, *self._inbox):
            self._end(each)
        self._running = []
        self._outbox.send()

    def _end(self, each: sequence.Sequence) -> None:
        ended = TokenChunk(token_ids=(), logprobs=(), version=self._version_of(each), finish_reason="abort")
        self._outbox.add(each.stream, ended)
