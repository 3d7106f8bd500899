"""File permissions, and secrets that are kept out of log lines, errors and arguments."""

import io
import logging
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from core import secrets
from core.errors import ConfigError, StoreUnavailable
from core.secrets import redacted
from core.settings import Settings, load_settings
from core.settings.secret import NAMES, URLS, secrets_of
from onward import cli
from onward.cli import app
from onward.commands.doctor import examine
from onward.commands.options import overrides_of
from onward.directory.layout import Layout
from onward.directory.private import _Formatter, own_folder, private_folder

NOT_SECRET = {"api.tls.key", "kafka.security.ssl_keyfile", "quotas.keys", "redis.prefix"}  # paths; names


def test_a_new_folder_is_its_owners_alone_and_a_wider_one_is_narrowed(tmp_path: Path) -> None:
    private_folder(tmp_path / "new")
    old = tmp_path / "old"
    old.mkdir()
    old.chmod(0o2775)
    private_folder(old)
    assert [stat.S_IMODE(path.stat().st_mode) & 0o777 for path in (tmp_path / "new", old)] == [0o700, 0o700]


def test_a_folder_that_is_not_ours_to_narrow_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    private_folder(tmp_path)
    assert f"{tmp_path}: others may enter it (mode 755)" in caplog.text


def test_a_socket_whose_directory_has_a_long_name_is_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    near, far = Layout(Path("/srv/onward")), Layout(Path("/srv") / ("é" * 60))
    assert near.line == Path("/srv/onward/line.sock")
    assert len(str(far.line)) < 50
    assert far.line == Layout(far.root).line != Layout(far.root / "other").line
    folder = tmp_path / "mine"
    for _ in range(2):
        own_folder(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").touch()
    folder.chmod(0o710)
    for other in (tmp_path / "link", tmp_path / "file", folder):
        with pytest.raises(ConfigError, match="is not a folder of this user's alone"):
            own_folder(other)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("postgresql://onward:pass@db:5432/onward is away", "postgresql://onward:***@db:5432/onward is away"),
        ("redis://:pass@127.0.0.1/0 and redis://127.0.0.1/0", "redis://:***@127.0.0.1/0 and redis://127.0.0.1/0"),
        ("host=db password=pass user=a", "host=db password=*** user=a"),
        ("postgresql://db/onward?user=a&password=pass&sslmode=require", "postgresql://db/onward?user=a&password=***&sslmode=require"),
        ("Authorization: Bearer sk-123", "Authorization: Bearer ***"),
        ("send Authorization: Bearer KEY, or x-api-key: KEY", "send Authorization: Bearer KEY, or x-api-key: KEY"),
        ("a planted-secret of two: planted-secret-longer", "a *** of two: ***"),
        ("onward serves at http://127.0.0.1:8700 (user@host)", "onward serves at http://127.0.0.1:8700 (user@host)"),
    ],
)  # fmt: skip
def test_secrets_are_kept_out(said: str, shown: str) -> None:
    secrets.keep(["planted-secret", "planted-secret-longer", "short"])
    assert redacted(said) == shown


def test_no_command_asks_a_proxy_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setenv("no_proxy", "intern")
    monkeypatch.setattr(cli, "keep_private", lambda: None)
    monkeypatch.setattr(cli, "app", lambda words: seen.append(os.environ["no_proxy"]))
    cli.main()
    assert seen == ["intern,localhost,127.0.0.1,::1"]


def test_the_doctor_shows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {
        "ONWARD_BLOBS": "nothing://onward:pass-of-blobs@host/blobs",
        "ONWARD_API__USER_HASH_KEY": "key-of-hash",
    }
    assert examine(tmp_path / "service", environment) == 1
    told = capsys.readouterr().out
    assert "onward:***@host" in told
    assert "pass-of-blobs" not in told


def logged(error: Exception, line: str = "it failed") -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter())
    logger = logging.getLogger("test_private")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        try:
            raise error
        except Exception:
            logger.exception(line)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue()


def test_of_errors_that_are_not_ours_the_log_tells_what_and_where() -> None:
    """Their messages are left out, for they may hold a prompt."""
    told = logged(ValueError("cannot render: the user's words"), "postgresql://a:pass@db/o")
    assert "the user's words" not in told
    assert "ValueError" in told
    assert "test_private.py" in told
    assert "a:***@db" in told
    ours = StoreUnavailable("the store does not answer")
    ours.__cause__ = KeyError("the user's words")
    told = logged(ours)
    assert "StoreUnavailable: the store does not answer" in told
    assert "KeyError" in told
    assert "the user's words" not in told


def test_nor_do_a_thread_and_a_process_that_an_error_ends() -> None:
    program = (
        "import threading; from onward.directory.private import keep_private; keep_private()\n"
        "def fail(): raise ValueError('the words of ' + 'a user')\n"
        "thread = threading.Thread(target=fail, name='scorer'); thread.start(); thread.join(); fail()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ended thread scorer" in ended.stderr
    assert ended.stderr.count("ValueError") == 2
    assert "the words of a user" not in ended.stderr


@pytest.mark.parametrize(
    "assignment",
    [
        "alerts.targets.ops.url=https://hooks.example.org/x",
        "api.keys=[]",
        "api.user_hash_key=x",
        "API.User_Hash_Key=x",
        "judge.api_key=x",
        "tracing.token=x",
        "kafka.security.sasl_password=x",
        "serving.sglang.admin_key=x",
        "postgres.url=postgresql://a:pass@db/o",
        "redis.url=redis://:pass@host",
    ],
)
def test_a_secret_is_no_argument(assignment: str) -> None:
    name = assignment.partition("=")[0]
    variable = "ONWARD_" + name.upper().replace(".", "__")
    with pytest.raises(ConfigError, match=f"--set {name}: .*{variable}") as refused:
        overrides_of([assignment])
    assert "pass" not in str(refused.value).replace("password", "")


def test_a_url_without_a_password_is() -> None:
    assert overrides_of(["postgres.url=postgresql://a@db/o"]) == {"ONWARD_POSTGRES__URL": "postgresql://a@db/o"}


def test_a_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-of-a-file\n")
    monkeypatch.setenv("ONWARD_KEY", "sk-of-the-environment")
    assert key_of("policies", "--key-file", str(tmp_path / "key")) == "sk-of-a-file"
    assert key_of("policies") == "sk-of-the-environment"
    load_settings(None, os.environ)  # it is no setting
    monkeypatch.delenv("ONWARD_KEY")
    assert key_of("policies") is None


def key_of(*arguments: str) -> Any:
    _, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
    return bound.arguments.get("key")


def test_every_setting_that_sounds_like_a_secret_is_known_as_one() -> None:
    sounds = {name for name in names(Settings) if re.search(r"key|password|secret|token$|credential", name)}
    assert {name for name in sounds if not any(name.startswith(secret) for secret in NAMES)} <= NOT_SECRET
    assert {name for name in names(Settings) if re.search(r"(^|\.|_)urls?$", name)} <= URLS


def names(kind: type[BaseModel], before: str = "") -> set[str]:
    found = set()
    for name, field in kind.model_fields.items():
        place = f"{before}{name}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= names(inner, f"{place}.")
        else:
            found.add(place)
    return found


def test_secrets_of_settings_are_found() -> None:
    settings = load_settings(
        None,
        {
            "ONWARD_API__KEYS": '[{key = "key-of-a-plugin", namespace = "n"}]',
            "ONWARD_POSTGRES__URL": "postgresql://a:pass-of-postgres@db/o",
            "ONWARD_SERVING__SGLANG__ADMIN_KEY": "key-of-engines",
            "ONWARD_ALERTS__TARGETS__OPS__URL": "https://hooks.example.org/place-of-alerts",
            "ONWARD_ALERTS__TARGETS__OPS__SECRET": "what-signs-alerts",
            "ONWARD_ALERTS__TARGETS__OPS__TOKEN": "token-of-alerts",
        },
    )
    of_alerts = {"https://hooks.example.org/place-of-alerts", "what-signs-alerts", "token-of-alerts"}
    assert set(secrets_of(settings)) == {"key-of-a-plugin", "pass-of-postgres", "key-of-engines", *of_alerts}
    assert not any(secret in repr(settings) for secret in secrets_of(settings))
