"""The engine's thread: between two steps requests join, leave and change versions.

A step is one forward pass for each version that serves, over all rows that decode and as many prompt tokens as the
settings allow. (Continuous batching: Orca, OSDI 2022; prompts in chunks beside decoding rows: Sarathi-Serve, arXiv
2403.02310.)

Requests of low priority run in steps that nobody else is in, give way between two layers of such a step to whoever
comes, and lose their slots to whoever waits for one: they go on later from the very tokens that they had."""

import logging
import math
import sys
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
from serving.engines.local.attention import GaveWay, Row
from serving.engines.local.model import Decoder, slot_cache
from serving.engines.local.sampler import Samples, sample
from serving.engines.local.slots import SlotTable
from serving.engines.local.stream import Outbox, Token
from serving.engines.local.waiting import WaitingRequests

T = TypeVar("T")
logger = logging.getLogger(__name__)
_LOW_PREFILL_TOKENS = 16, 256  # in a step of low priority: at least, and at most
_LOW_SWITCH_INTERVAL_S = 0.005  # how long other threads keep the interpreter before such a step takes it back
FirstToken = Callable[[PolicyRef, datetime], None]


class EngineScheduler:
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
        self._waiting = WaitingRequests()
        self._low_prefill_tokens = _LOW_PREFILL_TOKENS[0]
        self._switch_interval_s: float | None = None  # of all other steps, while a longer one holds
        self._spoke: set[PolicyRef] = set()  # since it last went live
        self._outbox = Outbox()
        self._inbox: deque[sequence.Sequence] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # over `_open` and what is put in while it is true
        self._open = False
        self._is_waited_for = False  # by a request of normal priority in the inbox
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
            self._is_waited_for = self._is_waited_for or not new.is_low
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
            self._share_interpreter(is_low=False)
            if not ended_well:
                self._abandon()

    def _loop(self) -> None:
        while self._open:
            if not (self._running or self._waiting or self._inbox or self._commands):
                self._share_interpreter(is_low=False)  # whoever comes next is served at once
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
        rows = [each for each in self._running if not each.is_low] or self._running
        self._share_interpreter(is_low=bool(rows) and rows[0].is_low)
        for version in dict.fromkeys(self._version_of(each) for each in rows):
            self._serve(version, [each for each in rows if self._version_of(each) == version])
        self._running = [each for each in self._running if each.slot >= 0]
        self._busy.running(len(self._running))
        telemetry.WAITING_REQUESTS.set(len(self._waiting))

    def _share_interpreter(self, *, is_low: bool) -> None:
        """While nobody waits for the engine, let who does wait for another thread's work have it first.

        A process that serves lets the engine take the interpreter back at once (decision 0002). An engine that is
        always busy would then cut the event loop, which reads users' requests, into small pieces."""
        if is_low and self._switch_interval_s is None:
            self._switch_interval_s = round(sys.getswitchinterval(), 6)  # whole microseconds, which setting cuts off
            sys.setswitchinterval(max(_LOW_SWITCH_INTERVAL_S, self._switch_interval_s))
        elif not is_low and self._switch_interval_s is not None:
            sys.setswitchinterval(self._switch_interval_s)
            self._switch_interval_s = None

    def _version_of(self, each: sequence.Sequence) -> PolicyRef:
        return self.live if each.pin is None else each.pin

    def _admit(self) -> None:
        self._is_waited_for = False  # before the inbox is read: who comes now is found in it, or is waited for again
        while self._inbox:
            self._waiting.add(self._inbox.popleft())
        for each in self._running:
            if each.aborted:
                self._free(each)
        self._running = [each for each in self._running if each.slot >= 0]
        self._waiting.drop_aborted()
        self._pause(self._waiting.in_the_way(self._running, self._slots))
        while (ready := self._waiting.next(self._slots)) is not None:
            self._give_slot(ready)
            self._running.append(ready)

    def _pause(self, low: Sequence[sequence.Sequence]) -> None:
        """Take the slots of requests of low priority: they wait again, with the tokens that they have."""
        for each in low:
            self._free(each)
            self._waiting.put_back(each)
        telemetry.PAUSED_REQUESTS.inc(len(low))
        self._running = [each for each in self._running if each.slot >= 0]

    def _give_slot(self, each: sequence.Sequence) -> None:
        """Give a request a slot, and go on from what is known of its tokens."""
        had, each.computed_under = each.computed, self._version_of(each)
        place = self._slots.take(each.tokens, each.under, is_low=each.is_low)
        each.slot, each.computed, each.unseen = place.slot, place.cached, 0
        if place.source != place.slot:
            self._cache.copy(place.source, place.slot, place.cached)
        if each.began:
            telemetry.REPREFILLED_TOKENS.inc(max(had - place.cached, 0))
            return
        each.began, each.cached_tokens = True, place.cached
        if not each.is_low:
            telemetry.QUEUE_SECONDS.observe(time.monotonic() - each.arrived_s)
        telemetry.CACHED_TOKENS.inc(place.cached)

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
        for each, count in chunks:
            each.unseen = max(each.unseen, each.computed + count)
        is_low = group[0].is_low
        gives_way = (lambda: self._is_waited_for) if is_low else None
        try:
            logits_RV = self.models[version].forward(self._cache, rows, tokens, must_give_way=gives_way)
        except GaveWay:
            self._low_prefill_tokens = max(self._low_prefill_tokens // 2, _LOW_PREFILL_TOKENS[0])
            return
        if is_low:
            self._low_prefill_tokens = min(self._low_prefill_tokens * 2, _LOW_PREFILL_TOKENS[1])
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
        if group[0].is_low:  # a step that never ends before somebody comes would be done for nothing
            budget = min(budget, self._low_prefill_tokens)
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
            each.unseen = 0
            if each.request.remember and not self._slots.is_shared(each.slot):
                self._slots.share(each.slot, each.tokens[: each.computed], each.under)
            finish = each.take(token_id)
            grammar = None if each.masks is None else each.masks.record()
            allowed = samples.sets.get(index)
            each.ids_to_tell -= len(allowed or ())
            told = Token(token_id, logprob, version, samples.tops.get(index), finish, allowed, grammar)
            tell = self._outbox.add if each.is_waited_for or finish is not None else self._outbox.hold
            tell(each.stream, told)
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
        """Free a slot; of what was never sampled from, such as half a prompt, nothing shows that it is finite."""
        is_finite = is_finite and (not each.unseen or self._cache.is_finite(each.slot, each.unseen))
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
