"""A request inside the engine."""

import random
import time

from core.events import FinishReason, Sampling
from core.grammars import sets
from core.grammars.masks import Masks, Words
from core.ids import PolicyRef
from core.ports import GenerateRequest
from serving.engines.local.stream import Stream


class Sequence:
    """Belongs to the engine's thread, but for `aborted`, which its reader sets."""

    __slots__ = (
        "aborted",
        "arrived_s",
        "began",
        "cached_tokens",
        "computed",
        "computed_under",
        "ids_to_tell",
        "limit",
        "mask",
        "masks",
        "pin",
        "prompt_tokens",
        "request",
        "rng",
        "sampling",
        "slot",
        "stop_token_ids",
        "stream",
        "tokens",
        "top_logprobs",
        "unseen",
    )

    def __init__(self, request: GenerateRequest, stream: Stream, masks: Masks | None = None) -> None:
        """Begin a request; `masks` are those of its grammar."""
        self.masks = masks
        self.mask: Words | None = None  # of the token to come
        self.arrived_s = time.monotonic()
        self.request = request
        self.stream = stream
        self.sampling: Sampling = request.sampling
        self.rng = random.Random(request.sampling.seed)  # None draws one
        self.tokens = list(request.prompt_token_ids)
        self.prompt_tokens = len(self.tokens)
        self.limit = self.prompt_tokens + request.sampling.max_tokens
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.top_logprobs = request.top_logprobs
        self.pin: PolicyRef | None = request.version
        self.slot = -1  # none yet, or none while it is paused
        self.began = False  # whether it ever had one
        self.computed = 0  # tokens whose keys and values the slot holds ...
        self.unseen = 0  # up to here the slot may hold numbers from which nothing was sampled yet; 0: none
        self.computed_under: PolicyRef | None = None  # ... under this version
        self.cached_tokens = 0
        self.ids_to_tell = sets.MAX_IDS + 1  # one beyond what is recorded, by which it shows that they are too many
        self.aborted = False

    @property
    def under(self) -> tuple[PolicyRef | None, str | None]:
        """What others must have in common with it to go on from what it has computed."""
        return self.computed_under, self.request.cache_scope

    @property
    def is_low(self) -> bool:
        return self.request.priority == "low"

    @property
    def is_waited_for(self) -> bool:
        """Return whether somebody waits for the token that it took last."""
        is_first = len(self.tokens) == self.prompt_tokens + 1
        return not self.is_low and (self.request.streamed or is_first)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def pending(self) -> int:
        """Tokens to compute before the next can be sampled; 1 while it decodes."""
        return len(self.tokens) - self.computed

    def take(self, token_id: int) -> FinishReason | None:
        """Continue by a sampled token; the reason if it was the last."""
        self.tokens.append(token_id)
        if self.masks is not None:
            self.masks.take(token_id)
        if token_id in self.stop_token_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None
