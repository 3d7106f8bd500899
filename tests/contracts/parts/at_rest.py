"""A search for words at rest, in every byte of every file below a directory."""

import base64
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec


def forms_of(words: str, token_ids: Sequence[int]) -> dict[str, bytes]:
    """Return the encodings in which words may be in a file, by name; base64 in its three alignments."""
    raw = words.encode()
    ids = list(token_ids)
    forms = {
        "text": raw,
        "json": json.dumps(words)[1:-1].encode(),
        "hex": raw.hex().encode(),
        "utf-16": words.encode("utf-16-le"),
        "ids (msgpack)": b"".join(map(msgspec.msgpack.encode, ids)),
        "ids (json)": ",".join(map(str, ids)).encode(),
        "ids (spaced json)": ", ".join(map(str, ids)).encode(),
        "ids (int32)": struct.pack(f"<{len(ids)}i", *ids),
        "ids (int64)": struct.pack(f"<{len(ids)}q", *ids),
    }
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        forms[f"base64 +{shift}"] = encoded[4 if shift else 0 : -4]
    return forms


def where_at_rest(directory: Path, forms: dict[str, bytes]) -> list[str]:
    """Return `FILE: FORM` for each file that contains one of the forms."""
    found = []
    for path in files_below(directory):
        content = bytes_there(path)
        found += [f"{path.relative_to(directory)}: {name}" for name, form in forms.items() if form in content]
    return found


def files_below(directory: Path) -> list[Path]:
    """Return the files, sorted, of a directory in which a service may be at work: others may be gone amid the look."""
    found = [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]
    return sorted(path for path in found if path.is_file())


def bytes_there(path: Path) -> bytes:
    """Return a file's content, or nothing where it has been removed meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
