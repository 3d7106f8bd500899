"""The statement at the end of an erasure: what was removed where, with counts and digests and no words, signed.

The signature (Ed25519, RFC 8032) is over the statement as JSON with sorted keys and no spaces, in UTF-8."""

import base64
import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from core.errors import ConfigError
from core.operations.erasures import Erasure

FORM: Final = "onward.erasure/1"


class Signer:
    """Signs with the key in a file, which is made at the first use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sign(self, statement: dict[str, Any]) -> str:
        """Return the statement with key and signature, as JSON. Raises ConfigError where the file holds no such key."""
        key = self._key()
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        signed = {
            "statement": statement,
            "public_key": base64.b64encode(public).decode(),
            "signature": base64.b64encode(key.sign(_canonical(statement))).decode(),
        }
        return json.dumps(signed, indent=1, sort_keys=True)

    def public_key(self) -> str:
        public = self._key().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return base64.b64encode(public).decode()

    def _key(self) -> Ed25519PrivateKey:
        if not self._path.exists():
            self._make()
        try:
            key = load_pem_private_key(self._path.read_bytes(), None)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"privacy.statement_key: {self._path} holds no private key: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"privacy.statement_key: {self._path} holds no Ed25519 key")
        return key

    def _make(self) -> None:
        made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        aside = self._path.with_suffix(".partial")
        aside.unlink(missing_ok=True)
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, made)
            os.fsync(file)
        finally:
            os.close(file)
        aside.rename(self._path)


def verified(signed: str) -> tuple[dict[str, Any], str]:
    """Return a statement and the public key that signed it. Raises ValueError saying what is wrong with it."""
    try:
        parts = json.loads(signed)
        public, signature = (base64.b64decode(parts[name], validate=True) for name in ("public_key", "signature"))
        statement = parts["statement"]
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _canonical(statement))
    except InvalidSignature as error:
        raise ValueError("the signature is not that of this statement") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no statement of an erasure: {error}") from error
    return statement, str(parts["public_key"])


def statement_of(order: Erasure, now: str) -> dict[str, Any]:
    """Return what is stated of an order whose steps are all done; it holds nobody's word and nobody's name."""
    return {
        "form": FORM,
        "erasure": order.erasure_id,
        "namespace": order.namespace,
        "kind": order.kind,
        "subject": order.subject,
        "ordered_at": order.ordered_at.isoformat(),
        "done_at": now,
        "sessions": len(order.sessions),
        **({"policy": order.subject, "namespaces": [*order.namespaces]} if order.kind == "organisation" else {}),
        "places": {
            name: msgspec.to_builtins(msgspec.structs.replace(step, marks={}))
            for name, step in sorted(order.steps.items())
        },
    }


def _canonical(statement: dict[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
