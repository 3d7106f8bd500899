"""The exact bytes of every token, for the two kinds of tokenizers that can make any text: by bytes, or by pieces."""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

_SPACE = "▁"  # how pieces write a space
_BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def decoder_types(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the types of a tokenizer's decoder, and of the decoders in it."""
    decoder = tokenizer.get("decoder") or {}
    return [each.get("type") for each in (decoder, *decoder.get("decoders", ()))]


def without_first_space(content: Mapping[str, Any]) -> Tokenizer | None:
    """Return the tokenizer as it is when it puts no space before a text; None where the given one puts none anyway."""
    changed = {**content}
    for name in ("normalizer", "pre_tokenizer"):
        changed[name] = _never_prepending(content.get(name))
    return None if changed == content else Tokenizer.from_str(json.dumps(changed))


def _never_prepending(part: Any) -> Any:
    """Return a normalizer or a pre-tokenizer, with those in it, without what it puts before a text."""
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    for name in ("normalizers", "pretokenizers"):
        if name in part:
            return {**part, name: [kept for each in part[name] if (kept := _never_prepending(each)) is not None]}
    return part


def of_bytes(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """Return the bytes of tokens in GPT-2's scheme, as Qwen, Llama 3 and others use it.

    Raises KeyError for a character that stands for no byte."""
    table = _byte_table()
    return {token_id: bytes(table[character] for character in token) for token, token_id in vocabulary.items()}


def of_pieces(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """Return the bytes of tokens in SentencePiece's scheme with byte fallback, as Gemma and Mistral use it."""
    return {token_id: _of_piece(token) for token, token_id in vocabulary.items()}


def _of_piece(token: str) -> bytes:
    return _BYTES.get(token) or token.replace(_SPACE, " ").encode()


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (https://github.com/openai/gpt-2, encoder.py: bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + place): byte for place, byte in enumerate(shifted)}
