"""The console in a browser: a world with its keys, and pages of it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from api_harness import Service, serve
from browser import running_browser
from console_world import VERSIONS, fill
from playwright.sync_api import Browser, Page

from core.ids import base_ref

START = datetime(2026, 1, 2, tzinfo=UTC)
READER, ADMIN, ANOTHERS = "key-that-reads", "key-of-the-admin", "key-of-anothers-admin"
KEYS = (
    {"key": READER, "namespace": "default", "scopes": ("read",)},
    {"key": ADMIN, "name": "ada", "namespace": "default", "scopes": ("admin",)},
    {"key": ANOTHERS, "name": "eve", "namespace": "other", "scopes": ("admin",)},
)
LIVE = VERSIONS - 1
REFUSED = "Failed to load resource: the server responded with a status of 4"
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("console") / "service", keys=KEYS) as service:
        fill(service.store, START)
        service.policy.live_version = base_ref(LIVE)
        yield service


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def open_page(world: Service, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Yield a function that opens a page in a new tab, with a key that may read.

    No page may log an error to its console, except refused requests in tests whose name says so."""
    errors: list[str] = []
    contexts = []

    def make(
        path: str = "#rewards",
        width: int = 1600,
        scheme: Any = "light",
        key: str = READER,
        of: Service = world,
        now: datetime | None = None,
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 844 if width == 390 else 900}, color_scheme=scheme
        )
        contexts.append(context)
        if now is not None:
            context.clock.set_fixed_time(now)
        context.add_init_script(f"sessionStorage.setItem('onward-key', {key!r})")
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{of.url}/{path}")
        return page

    yield make
    for context in contexts:
        context.close()
    assert [error for error in errors if not (REFUSED in error and "refuse" in request.node.name)] == []


def give(page: Page, why: str, key: str) -> None:
    page.locator("#why").fill(why)
    page.locator("#admin-key").fill(key)
    page.locator("#admin-key").blur()
    page.locator("#order-do").click()
