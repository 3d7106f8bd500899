"""The operator's console at `GET /`. The page itself has no data, so it needs no key; its requests do.

Its charts are drawn by uPlot, whose bundle the package `youplot` ships; the page's `integrity` compares that with
the digest of uPlot's own release."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter, Request, Response

from api.http.assets import Asset, make_asset
from core.errors import NotFound

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PAGE = "index.html"
_CHARTS = {"uplot.js": "youplot/vendor/uplot.iife.min.js", "uplot.css": "youplot/vendor/uplot.min.css"}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)


def console_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    assets = load_assets()
    page = assets[_PAGE]

    @router.get("/")
    async def console(request: Request) -> Response:
        return page.answer(request, {"content-security-policy": _POLICY})

    @router.get("/console/{name:path}")
    async def part(request: Request, name: str) -> Response:
        found = assets.get(name)
        if found is None or found is page:
            raise NotFound(f"the console has no file {name}", code="no_such_route")
        return found.answer(request, {})

    return router


@cache
def load_assets() -> Mapping[str, Asset]:
    """Return the files of this package and those of uPlot, by their paths below `/console`."""
    package = files("api.console")
    folders = {"": package, "views/": package / "views", "suites/": package / "suites"}
    own = {
        f"{folder}{file.name}": file.read_bytes()
        for folder, held in folders.items()
        for file in held.iterdir()
        if _kind(file.name)
    }
    charts = distribution("youplot")
    drawn = {name: charts.locate_file(path).read_bytes() for name, path in _CHARTS.items()}  # type: ignore[attr-defined]
    return {name: make_asset(_kind(name) or "", content) for name, content in {**own, **drawn}.items()}


def _kind(name: str) -> str | None:
    return _KINDS.get(PurePath(name).suffix)
