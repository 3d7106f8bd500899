"""A byte-level BPE tokenizer (GPT-2's scheme, as Qwen, Llama 3 and others use it): exact bytes of every token."""

import json
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from core.errors import ConfigError, InvalidRequest

_CACHED_TEXTS = 8192
_CACHED_CHARACTERS = 2048  # of each
_SLICE = 64 << 10
_OF_A_CUT = 64
_USUAL_CHARACTERS = 4  # of a token: texts that fit the context by that are not looked at twice
_MOST_SHRUNK = 3  # what normalising may make of a text: of three bytes one


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (https://github.com/openai/gpt-2, encoder.py: bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + place): byte for place, byte in enumerate(shifted)}


class Vocabulary:
    def __init__(self, path: Path, most_tokens: int | None = None) -> None:
        """`most_tokens`: of a text. Raises ConfigError naming the file when it is no byte-level tokenizer."""
        try:
            text = path.read_text(encoding="utf-8")
            decoder = (json.loads(text).get("decoder") or {}).get("type")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if decoder != "ByteLevel":
            raise ConfigError(f"{path}: a byte-level tokenizer is needed, its decoder is {decoder}")
        self._tokenizer = Tokenizer.from_str(text)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token_id: str(token.content) for token_id, token in added.items() if token.special}
        self.added = {token_id: str(token.content) for token_id, token in added.items()}
        try:
            self._bytes = self._all_bytes()
        except KeyError as error:
            raise ConfigError(
                f"{path}: a byte-level tokenizer is needed, a token holds the character {error}"
            ) from error
        self._most_tokens = most_tokens
        longest = max(map(len, self._bytes.values()))
        self._longest_token = longest if self._tokenizer.normalizer is None else longest * _MOST_SHRUNK
        self._encode_short = lru_cache(_CACHED_TEXTS)(self._encode)

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode a text; added tokens in it are recognised. Raises InvalidRequest for too many tokens."""
        if len(text) <= _CACHED_CHARACTERS:
            return self._encode_short(text)
        if self._most_tokens is not None:
            self._refuse_too_long(text, self._most_tokens)
        return self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Encode without the tokens' offsets, which cost as much again; other threads run meanwhile."""
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

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
        table = _byte_table()
        whole = {token_id: content.encode() for token_id, content in self.added.items()}
        for token, token_id in self._tokenizer.get_vocab(with_added_tokens=False).items():
            if token_id not in whole:
                whole[token_id] = bytes(table[character] for character in token)
        return whole
