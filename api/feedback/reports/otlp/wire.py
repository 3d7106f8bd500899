"""Exports and their answers as bytes: OTLP over HTTP, as protobuf or JSON, compressed or not.

https://opentelemetry.io/docs/specs/otlp/#otlphttp. In JSON, ids of traces and spans are in hexadecimal, where the JSON
of protobuf has base64; unknown fields are left alone, as the specification asks; errors are `google.rpc.Status`."""

import base64
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status

from api.feedback.reports.otlp.fields import check_fields
from api.http.asgi import JSON, Headers
from api.http.body_shape import Raw
from api.http.decoding import decode_body
from core.errors import InvalidRequest, TooLarge, UnsupportedMediaType

M = TypeVar("M", bound=Message)
PROTOBUF = b"application/x-protobuf"
_GZIP = 16 + zlib.MAX_WBITS
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 413: 8, 415: 3, 429: 8, 503: 14}  # of google.rpc.Code
_UNKNOWN = 2
_IDS = ("traceId", "spanId", "parentSpanId")
_json = msgspec.json.Decoder(dict[str, Any])


def media_of(headers: Headers) -> bytes:
    """Return which of the two media types the body has. Raises UnsupportedMediaType."""
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media not in (JSON, PROTOBUF):
        raise UnsupportedMediaType(
            "send application/x-protobuf or application/json", param="content-type", code="unsupported_media_type"
        )
    return media


def is_compressed(headers: Headers) -> bool:
    """Return whether the body is compressed by gzip. Raises UnsupportedMediaType for another encoding."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"gzip", b"identity"):
        raise UnsupportedMediaType(
            "compress by gzip, or not at all", param="content-encoding", code="unsupported_encoding"
        )
    return encoding == b"gzip"


def decompressed(raw: Raw, most: int) -> bytes:
    """Return what gzip compressed. Raises TooLarge beyond that many bytes, InvalidRequest for what is not gzip."""
    reader = zlib.decompressobj(_GZIP)
    try:
        content = reader.decompress(raw, most + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not gzip: {error}", code="malformed_gzip") from None
    if len(content) > most:
        raise TooLarge(f"the body is larger than {most} bytes when it is decompressed", code="body_too_large")
    if not reader.eof:
        raise InvalidRequest("the body is cut off: its gzip does not end", code="malformed_gzip")
    if reader.unused_data:
        raise InvalidRequest("the body goes on behind its gzip: send one member", code="malformed_gzip")
    return content


def read_export(kind: type[M], media: bytes, raw: Raw, most: int) -> M:
    """Return the message, if it has at most so many fields; those of large JSON were counted before.

    Raises TooLarge, InvalidRequest."""
    export = kind()
    try:
        if media == PROTOBUF:
            check_fields(raw, cast(Descriptor, kind.DESCRIPTOR), most)
            export.ParseFromString(bytes(raw))
        else:
            json_format.ParseDict(_with_plain_ids(decode_body(_json, raw)), export, ignore_unknown_fields=True)
    except DecodeError as error:
        raise InvalidRequest(f"the body is no {kind.__name__}: {error}", code="malformed_protobuf") from None
    except json_format.ParseError as error:
        raise InvalidRequest(f"the body is no {kind.__name__}: {error}", code="malformed_json") from None
    return export


def answer(message: Message, media: bytes) -> bytes:
    if media == PROTOBUF:
        return message.SerializeToString()
    return json_format.MessageToJson(message, indent=None).encode()


def in_status_shape(status: int, said: dict[str, Any]) -> dict[str, Any]:
    """Return an error as the JSON of `google.rpc.Status`."""
    return {"code": _CODES.get(status, _UNKNOWN), "message": said["message"]}


def status_message(status: int, said: dict[str, Any]) -> bytes:
    """Return an error as the protobuf of `google.rpc.Status`."""
    message: bytes = Status(**in_status_shape(status, said)).SerializeToString()
    return message


def _with_plain_ids(export: dict[str, Any]) -> dict[str, Any]:
    """Change ids in hexadecimal, in place, to those that protobuf's JSON has. Raises InvalidRequest."""
    for resource in [*_objects(export, "resourceLogs"), *_objects(export, "resourceSpans")]:
        for scope in [*_objects(resource, "scopeLogs"), *_objects(resource, "scopeSpans")]:
            for record in [*_objects(scope, "logRecords"), *_objects(scope, "spans")]:
                for carrier in (record, *_objects(record, "links")):
                    _change_ids(carrier)
    return export


def _change_ids(carrier: dict[str, Any]) -> None:
    for name in _IDS:
        if isinstance(carrier.get(name), str):
            try:
                carrier[name] = base64.b64encode(bytes.fromhex(carrier[name])).decode()
            except ValueError:
                raise InvalidRequest(f"{name}: it is not hexadecimal", param=name, code="invalid_field") from None


def _objects(parent: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    found = parent.get(name)
    return (each for each in found if isinstance(each, dict)) if isinstance(found, list) else iter(())
