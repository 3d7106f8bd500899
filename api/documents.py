"""The documentation at `GET /docs`, as `make install` built it. It has nobody's data, so it needs no key.

Its scripts are its own files, and the few inline ones of each page, which are allowed by their digests: no others
run."""

import base64
import hashlib
import mimetypes
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from api.http.assets import Asset, make_asset
from api.http.background import on_a_thread
from core.errors import NotFound

_CHECKOUT = Path(__file__).resolve().parents[1]
_BUILDERS = ("mkdocs", "material")  # packages, of the extra `docs`
_NOT_BUILT = """\
The documentation is not built here. In the checkout that this service runs from, with the Python that runs it:

{commands}

Then load this page again, which shows it. The API is at /openapi.json.
"""


class Site:
    """The built pages by path below `/docs/`, read from `directory` at the first request."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._assets: dict[str, Asset] = {}

    @property
    def assets(self) -> dict[str, Asset]:
        """The pages; empty until they are built."""
        if not self._assets and self._directory is not None:
            self._assets = dict(_read(self._directory))
        return self._assets


def commands_to_build(python: Path = Path(sys.executable)) -> list[str]:
    """Return what to type in the checkout, by what the Python has that runs the service.

    Strangers read it: of a Python elsewhere they are not told where it is."""
    name = python.relative_to(_CHECKOUT).as_posix() if python.is_relative_to(_CHECKOUT) else python.name
    build = f"{name} -m mkdocs build"
    if all(find_spec(package) for package in _BUILDERS):
        return [build]
    install = f"{name} -m pip install" if find_spec("pip") else f"uv pip install --python {name}"
    return [f"{install} -e '.[docs]'", build]


def documents_router(directory: Path | None) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    site = Site(directory)

    @router.get("/docs")
    async def documents() -> Response:
        return RedirectResponse("docs/")

    @router.get("/docs/{path:path}")
    async def document(request: Request, path: str) -> Response:
        assets = await on_a_thread(lambda: site.assets)
        if not assets:
            commands = "\n".join(f"    {command}" for command in commands_to_build())
            return PlainTextResponse(_NOT_BUILT.format(commands=commands), 404)
        if path and path + "/" in assets:
            return RedirectResponse(path.rpartition("/")[2] + "/")
        found = assets.get(path)
        if found is None:
            raise NotFound(f"the documentation has no page {path}", code="no_such_route")
        return found.answer(request, {"content-security-policy": _policy(found)})

    return router


def _read(directory: Path) -> Iterator[tuple[str, Asset]]:
    for path in directory.rglob("*"):
        if path.is_file() and path.suffix != ".map":
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            yield path.relative_to(directory).as_posix().removesuffix("index.html"), make_asset(kind, path.read_bytes())


def _policy(page: Asset) -> str:
    after = page.content.split(b"<script>")[1:] if page.kind == "text/html" else []
    scripts = [text.partition(b"</script>")[0] for text in after]
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(["script-src 'self'", *(f"'sha256-{digest}'" for digest in digests)]),
            "style-src 'self' 'unsafe-inline'",  # for the cells of tables
            "connect-src 'self'",
            "worker-src 'self'",  # for the search
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
