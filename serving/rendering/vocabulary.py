"""A byte-level BPE tokenizer (GPT-2's scheme, as Qwen, Llama 3 and others use it): exact bytes of every token."""

import json
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from core.errors import ConfigError

_CACHED_TEXTS = 8192


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (https://github.com/openai/gpt-2, encoder.py: bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + place): byte for place, byte in enumerate(shifted)}


class Vocabulary:
    def __init__(self, path: Path) -> None:
        """Raises ConfigError naming the file when it is no byte-level tokenizer."""
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
        self.encode = lru_cache(_CACHED_TEXTS)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Added tokens in the text are recognised."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

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
