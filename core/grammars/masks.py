"""The masks along one answer: which ids each token could have been, as bits.

The layout is that of grammar engines: id `v` is bit `v % 32` of word `v // 32` (int32, little endian). P words."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidRequest, OnwardError
from core.events import Completion, Grammar, GrammarMasks
from core.grammars.library import LIBRARY, TOO_COMPLEX, VERSION, Grammars

Words = NDArray[np.int32]
OTHER_LIBRARY: Final = "other_grammar_library"
OTHER_MASKS: Final = "other_masks"
_DIGEST_BYTES = 16


class NotAllowed(OnwardError):
    """A token that its mask does not allow."""


class NoMasks(OnwardError):
    """The masks of a turn cannot be made again; its text is the reason for which the turn does not train."""


class Masks:
    """The masks of one answer, whose tokens it is told. Not thread-safe.

    `digest` is a chain over the masks of all tokens told: blake2b of the digest before and of the mask."""

    def __init__(
        self, grammars: Grammars, grammar: Grammar, stop_token_ids: tuple[int, ...], scope: str | None = None
    ) -> None:
        """Begin; `scope` as in `Grammars.matcher`. Raises InvalidRequest for a grammar that cannot be compiled."""
        self._matcher = grammars.matcher(grammar, stop_token_ids, scope)
        self._vocabulary, self._stop_token_ids = grammars.vocabulary, stop_token_ids
        self._mask: Words | None = None
        self._is_over = False
        self._tokens = 0
        self._digest = b""

    def next(self) -> Words:
        """Return the mask [P] of the token to come. Raises InvalidRequest where making it is beyond the bounds."""
        if self._mask is None:
            is_lost = self._matcher.is_error()
            words = np.frombuffer(b"" if is_lost else self._matcher.compute_bitmask(), dtype=np.int32)
            if self._matcher.is_error() or not words.any():
                why = " ".join(self._matcher.get_error().split("<")[0].split())
                raise InvalidRequest(
                    f"the grammar of the answer was too complex to go on with after {self._tokens} tokens: {why}",
                    code=TOO_COMPLEX,
                )
            self._mask = words[: -(-self._vocabulary // 32)]
        return self._mask

    def take(self, token_id: int) -> None:
        """Go on by a token. Raises NotAllowed, and InvalidRequest as `next` does."""
        mask = self.next()
        if self._is_over or not 0 <= token_id < self._vocabulary or not _allows(mask, token_id):
            raise NotAllowed(f"output token {self._tokens}, {token_id}, is not allowed by its mask")
        self._digest = hashlib.blake2b(self._digest + mask.tobytes(), digest_size=_DIGEST_BYTES).digest()
        self._tokens, self._mask = self._tokens + 1, None
        if token_id in self._stop_token_ids:
            self._is_over = True
        else:
            self._matcher.consume_token(token_id)  # an error of the library's is the next mask's

    def record(self) -> GrammarMasks:
        return GrammarMasks(
            library=LIBRARY,
            version=VERSION,
            vocabulary=self._vocabulary,
            stop_token_ids=self._stop_token_ids,
            digest=self._digest.hex(),
        )


def _allows(mask: Words, token_id: int) -> bool:
    return bool((int(mask[token_id // 32]) >> (token_id % 32)) & 1)


def shared(mask: Words, distinct: dict[bytes, Words]) -> Words:
    """Return the mask of `distinct` that equals this one, which is added where there is none."""
    words = mask.tobytes()
    return distinct.setdefault(words, np.frombuffer(words, dtype=np.int32))


def made_again(turn: Completion, grammars: Grammars) -> Sequence[Words]:
    """Return the masks of a turn's output tokens, made again; equal ones are one array.

    Raises NoMasks: `other_grammar_library`, or `other_masks` where they are not those that were recorded."""
    grammar, recorded = turn.sampling.grammar, turn.logprob_space.grammar
    assert grammar is not None
    if recorded is None or (recorded.library, recorded.version) != (LIBRARY, VERSION):
        raise NoMasks(OTHER_LIBRARY)
    found, distinct = [], dict[bytes, Words]()
    try:
        masks = Masks(grammars, grammar, recorded.stop_token_ids)
        for token_id in turn.token_ids:
            found.append(shared(masks.next(), distinct))
            masks.take(token_id)
    except (NotAllowed, InvalidRequest) as error:
        raise NoMasks(OTHER_MASKS) from error
    if masks.record() != recorded:
        raise NoMasks(OTHER_MASKS)
    return found
