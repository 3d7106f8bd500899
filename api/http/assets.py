"""Files for a browser: kept in memory, compressed, and identified by a digest."""

import gzip
import hashlib

import msgspec
from fastapi import Request, Response

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # kept by the browser, which asks by its tag whether it is still current
    "vary": "accept-encoding",
}


class Asset(msgspec.Struct, frozen=True):
    kind: str
    content: bytes
    zipped: bytes
    tag: str

    def answer(self, request: Request, headers: dict[str, str]) -> Response:
        headers = {**_HEADERS, **headers, "etag": self.tag}
        if request.headers.get("if-none-match") == self.tag:
            return Response(None, 304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self.zipped, media_type=self.kind, headers={**headers, "content-encoding": "gzip"})
        return Response(self.content, media_type=self.kind, headers=headers)


def make_asset(kind: str, content: bytes) -> Asset:
    tag = hashlib.blake2b(content, digest_size=12).hexdigest()
    return Asset(kind, content, gzip.compress(content, mtime=0), f'"{tag}"')
