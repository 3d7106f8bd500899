"""VS Code in Chromium with our extension, worked as a person would."""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browser import running_browser
from packages import built, node, run, shown
from playwright.sync_api import Locator, Page, TimeoutError
from ports import free_port

from deploy import ide

_START_S = 240
_SEEN_MS = 400  # what stands for so long counts as seen
_QUIET = {
    "security.workspace.trust.enabled": False,
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
    "telemetry.telemetryLevel": "off",
    "extensions.autoUpdate": False,
    "update.mode": "none",
    "chat.commandCenter.enabled": False,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.autoIndent": "none",
}
_GHOST = ".ghost-text-decoration, .ghost-text"


def program() -> Path:
    """Return VS Code's program; skip without one, or fail where ONWARD_REQUIRE_SERVICES=1."""
    found = ide.find()
    if found is None:
        missing = "needs VS Code: run `make ide`"
        if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@contextmanager
def running_editor(directory: Path, workspace: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """Run VS Code with the packaged extension; yield its URL."""
    entry, user, extensions = program(), directory / "user", directory / "extensions"
    (user / "User").mkdir(parents=True)
    (user / "User" / "settings.json").write_text(json.dumps({**_QUIET, **settings}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VSCODE_")}
    environment |= {"HOME": str(directory)}
    command = [node(), str(entry), "--user-data-dir", str(user), "--extensions-dir", str(extensions)]
    subprocess.run(
        [*command, "--install-extension", str(package(directory))], check=True, env=environment, capture_output=True
    )
    port = free_port()
    command += ["--auth", "none", "--bind-addr", f"127.0.0.1:{port}", "--disable-telemetry", "--disable-update-check"]
    with (directory / "editor.log").open("wb") as log:
        process = subprocess.Popen([*command, str(workspace)], stdout=log, stderr=log, env=environment)
    try:
        _wait_until_it_listens(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        if process.poll() is None:
            process.kill()
            process.wait()


def package(directory: Path) -> Path:
    """Return the extension, as it would be published."""
    extension, made = built("vscode"), directory / "onward.vsix"
    where, command = shown("vscode")[-1]
    assert where == extension
    run(where, [*command, "--", "--out", str(made)])
    return made


class Editor:
    """A window of VS Code with one file open."""

    def __init__(self, page: Page, directory: Path) -> None:
        """Work in a page of the VS Code that runs on this directory."""
        self.page = page
        self._pictures = directory / "pictures"
        self._user = directory / "user" / "User"

    def set(self, name: str, value: Any) -> None:
        """Change a setting of the user's; a window has it once it is loaded anew."""
        file = self._user / "settings.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def write(self, text: str, line: int) -> None:
        """Make the file consist of this text, and put the cursor at the beginning of a line, counted from 1."""
        self.press("Control+a", "Delete")
        self.page.keyboard.insert_text(text)
        self.press("Control+Home", *["ArrowDown"] * (line - 1))

    def suggestion(self, beginning: str, words: int = 1) -> None:
        """Type a line's beginning until a suggestion of so many words is seen: the model may also stay silent."""
        for _ in range(12):
            self.page.keyboard.type(beginning)
            if self._ghost_of(words):
                self.page.wait_for_timeout(_SEEN_MS)
                return
            self.press(*["Backspace"] * len(beginning))
        self.picture("no-suggestion")
        pytest.fail("no suggestion was seen")

    def _ghost_of(self, words: int) -> bool:
        try:
            self.page.wait_for_selector(_GHOST, timeout=10_000)
        except TimeoutError:
            return False
        return len("".join(self.page.locator(_GHOST).all_inner_texts()).split()) >= words

    @property
    def status(self) -> Locator:
        return self.page.locator("[id='onward.onward.onward']")

    def text(self) -> str:
        return "\n".join(self.page.locator(".view-line").all_inner_texts()).replace("\xa0", " ")

    def queued(self) -> dict[str, list[str]]:
        """Return the names of the outcomes in the extension's queues, sorted, by inference."""
        found: dict[str, list[str]] = {}
        for file in self._user.glob("globalStorage/onward.onward/feedback/**/*.json"):
            with suppress(FileNotFoundError):  # it was sent
                body = json.loads(json.loads(file.read_text())["body"])
                found.setdefault(body["inference_id"], []).append(body["metric_name"])
        return {inference_id: sorted(names) for inference_id, names in found.items()}

    def picture(self, name: str) -> None:
        self.page.screenshot(path=self._pictures / f"{name}.png")

    def await_start(self) -> None:
        self.page.wait_for_selector(".view-lines", timeout=_START_S * 1000)
        self.status.wait_for(timeout=_START_S * 1000)
        self.page.click(".view-lines")


@contextmanager
def open_file(url: str, file: Path, directory: Path) -> Iterator[Editor]:
    """Open a file of the workspace in a window of its own; `directory` is the one that VS Code runs on."""
    remote = f"vscode-remote://{url.removeprefix('http://')}{file}"
    query = urlencode({"folder": str(file.parent), "payload": json.dumps([["openFile", remote]])})
    with running_browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_START_S * 1000)
        page.goto(f"{url}/?{query}")
        editor = Editor(page, directory)
        editor.await_start()
        yield editor


def _wait_until_it_listens(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "VS Code ended"
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"VS Code did not listen within {_START_S} s")


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = 120) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {timeout_s} s")
        time.sleep(0.05)
    return found
