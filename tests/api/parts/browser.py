"""A headless Chromium, driven as a person would."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from deploy import browser

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def running_browser(*flags: str) -> Iterator[Browser]:
    """Yield a browser; skip without one, or fail where ONWARD_REQUIRE_SERVICES=1."""
    program = browser.find()
    if program is None:
        missing = "needs Chromium: run `make browser`"
        if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    expect.set_options(timeout=120_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=[*FLAGS, *flags], timeout=120_000)
        yield chromium
        chromium.close()
