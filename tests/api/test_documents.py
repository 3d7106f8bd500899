"""The documentation at `/docs`: as built, loading nothing from elsewhere, or the commands that build it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve
from browser import running_browser
from playwright.sync_api import expect

from api.documents import commands_to_build
from core.operations.alarm_advice import ADVICE, page_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with the documentation, freshly built."""
    directory = tmp_path_factory.mktemp("documents")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(directory / "site")]
    subprocess.run(build, cwd=ROOT, env={"NO_MKDOCS_2_WARNING": "1"}, check=True)
    with serve(directory / "service", site=directory / "site") as service:
        yield service


def test_where_it_is_not_built_it_says_how(tmp_path: Path) -> None:
    with serve(tmp_path / "service", site=tmp_path / "site") as service:
        for path in ("/docs", "/docs/", "/docs/settings/"):
            answer = service.http.get(path, follow_redirects=True)
            assert answer.status_code == 404
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert [line.strip() for line in answer.text.splitlines() if line[:4] == "    "] == commands_to_build()
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "index.html").write_text("<p>at last</p>")
        assert service.http.get("/docs/").text == "<p>at last</p>"
    assert service.services.site is not None


@pytest.mark.parametrize(
    ("installed", "python", "commands"),
    [
        ({"mkdocs", "material"}, ROOT / ".venv/bin/python", [".venv/bin/python -m mkdocs build"]),
        ({"pip", "mkdocs"}, Path("/of/ada/python"), ["python -m pip install -e '.[docs]'", "python -m mkdocs build"]),
        (set(), ROOT / "v/python", ["uv pip install --python v/python -e '.[docs]'", "v/python -m mkdocs build"]),
    ],
    ids=["a builder", "pip", "nothing"],
)
def test_the_commands_are_for_what_is_there(
    installed: set[str], python: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.documents.find_spec", lambda name: name in installed or None)
    assert commands_to_build(python) == commands


def test_an_installation_builds_it() -> None:
    """Whoever has done nothing else reads it, and after a change to a page its newest words."""
    asked = ["make", "-n", "-o", ".venv/.installed", "-W", "docs/settings.md", "install"]
    said = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "mkdocs build" in said


def test_pages_are_found_by_their_folders(world: Service) -> None:
    for path, title in {"/docs": "Onward", "/docs/settings/": "Settings", "/docs/settings": "Settings"}.items():
        answer = world.http.get(path, follow_redirects=True)
        assert (answer.status_code, answer.url.path[-1]) == (200, "/")
        assert f'<h1 id="{title.lower()}">{title}' in answer.text
    tag = {"if-none-match": answer.headers["etag"]}
    assert world.http.get("/docs/settings/", headers=tag).status_code == 304
    for path in ("decisions/0001-renderer-port/", "changelog/", "rewards.toml", "images/regret.png"):
        assert world.http.get(f"/docs/{path}").status_code == 200, path


def test_each_alarm_links_to_its_paragraph(world: Service) -> None:
    """The paragraphs are those of the built page: what `docs` of an alarm names is there once."""
    for page, _, anchor in (page_of(monitor).partition("#") for monitor in ADVICE):
        assert world.http.get(f"/{page}").text.count(f'id="{anchor}"') == 1, anchor


@pytest.mark.parametrize("path", ["nothing/", "../pyproject.toml", "%2e%2e/%2e%2e/etc/passwd", "%00", "a" * 5000, "/x"])
def test_there_is_nothing_else(world: Service, path: str) -> None:
    assert world.http.get(f"/docs/{path}", follow_redirects=False).status_code == 404


def test_it_is_read_and_searched_in_a_browser_without_the_internet(world: Service) -> None:
    with running_browser() as chromium:
        page = chromium.new_page()
        errors: list[str] = []
        asked: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(world.url + "/docs/")
        page.get_by_role("link", name="Architecture").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Architecture")
        page.get_by_placeholder("Search").press_sequentially("max_share")  # the page listens to keys alone
        expect(page.locator(".md-search-result__link").first).to_be_visible()
        page.locator(".md-search-result__link", has_text="max_share").first.click()
        expect(page.get_by_role("heading", level=1)).not_to_contain_text("Architecture")
        assert not errors
        assert {url for url in asked if not url.startswith((world.url, "data:"))} == set()
