"""A tokenizer that can make any text, by bytes or by pieces with byte fallback, and the exact bytes of its tokens."""

import json
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from core.errors import ConfigError, InvalidRequest
from serving.rendering.token_bytes import decoder_types, of_bytes, of_pieces, without_first_space

_CACHED_TEXTS = 8192
_CACHED_CHARACTERS = 2048  # of each
_SLICE = 64 << 10
_OF_A_CUT = 64
_USUAL_CHARACTERS = 4  # of a token: texts that fit the context by that are not looked at twice
_MOST_SHRUNK = 3  # what normalising may make of a text: of three bytes one


class Vocabulary:
    def __init__(self, path: Path, most_tokens: int | None = None) -> None:
        """`most_tokens`: of a text. Raises ConfigError naming the file when its tokens cannot make every text."""
        try:
            text = path.read_text(encoding="utf-8")
            content = json.loads(text)
            decoders = decoder_types(content)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        self._is_of_bytes = "ByteLevel" in decoders
        if not (self._is_of_bytes or "ByteFallback" in decoders):
            raise ConfigError(
                f"{path}: a tokenizer of bytes, or with byte fallback, is needed, its decoder is {decoders}"
            )
        self.drops_first_space = "Strip" in decoders
        """Whether an answer's first space belongs to the tokenizer and not to the answer."""
        self._tokenizer = Tokenizer.from_str(text)
        self._inner = without_first_space(content)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token_id: str(token.content) for token_id, token in added.items() if token.special}
        self.added = {token_id: str(token.content) for token_id, token in added.items()}
        try:
            self._bytes = self._all_bytes()
        except KeyError as error:
            raise ConfigError(f"{path}: a tokenizer of bytes is needed, a token holds the character {error}") from error
        self._most_tokens = most_tokens
        longest = max(map(len, self._bytes.values()))
        self._longest_token = longest if self._tokenizer.normalizer is None else longest * _MOST_SHRUNK
        self._encode_short = lru_cache(_CACHED_TEXTS)(self._encode)

    def encode(self, text: str, *, inner: bool = False) -> tuple[int, ...]:
        """Encode a text; added tokens in it are recognised. Raises InvalidRequest for too many tokens.

        An `inner` text is not the beginning of one, before which some tokenizers put a space."""
        tokenizer = self._inner if inner and self._inner is not None else self._tokenizer
        if len(text) <= _CACHED_CHARACTERS and tokenizer is self._tokenizer:
            return self._encode_short(text)
        if self._most_tokens is not None:
            self._refuse_too_long(text, self._most_tokens)
        return _ids_of(tokenizer, text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return _ids_of(self._tokenizer, text)

    def check_count(self, tokens: int) -> None:
        """Refuse more tokens than allowed. Raises InvalidRequest."""
        if self._most_tokens is not None and tokens > self._most_tokens:
            raise self._too_long()

    def check_length(self, text: str) -> None:
        """Refuse a text that has too many tokens however it is cut. Raises InvalidRequest."""
        if self._most_tokens is not None and len(text) > self._most_tokens * self._longest_token:
            raise self._too_long()  # each character has a byte or more

    def _refuse_too_long(self, text: str, most: int) -> None:
        """Refuse a long text before making all its tokens: its cost follows its length, which a client chooses."""
        self.check_length(text)
        if len(text) <= most * _USUAL_CHARACTERS:
            return
        found, bound = 0, most + most // 10  # where a text is cut, tokens differ
        for start in range(0, len(text), _SLICE):
            found += len(self._encode(text[start : start + _SLICE])) - _OF_A_CUT
            if found > bound:
                raise self._too_long()

    def _too_long(self) -> InvalidRequest:
        what = f"more tokens than the {self._most_tokens} that the context holds with the answer"
        return InvalidRequest(what, code="context_length_exceeded")

    def id_of(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    def _all_bytes(self) -> dict[int, bytes]:
        own = self._tokenizer.get_vocab(with_added_tokens=False)
        pieces = {token: token_id for token, token_id in own.items() if token_id not in self.added}
        if self._is_of_bytes:
            return {token_id: content.encode() for token_id, content in self.added.items()} | of_bytes(pieces)
        written = {text: token_id for token_id, text in self.added.items() if token_id not in self.special}
        whole = {token_id: content.encode() for token_id, content in self.special.items()}
        return whole | of_pieces(written) | of_pieces(pieces)


def _ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Encode without the tokens' offsets, which cost as much again; other threads run meanwhile."""
    return tuple(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
