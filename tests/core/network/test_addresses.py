"""Addresses that a machine's owner gives: passwords as they are, IPv6, a proxy in the environment, odd directories."""

from pathlib import Path

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict
from redis import ConnectionPool

from core.errors import ConfigError
from core.network.addresses import reach_loopback_directly
from core.settings import load_settings
from core.settings.secret import is_secret, secrets_of
from core.store import open_sqlite

ODD = "p@ss/w#or%d:"
URLS = ("ONWARD_POSTGRES__URL", "ONWARD_REDIS__URL", "ONWARD_JUDGE__BASE_URL", "ONWARD_SERVING__SGLANG__URLS")


def test_a_password_is_taken_as_it_is(tmp_path: Path) -> None:
    postgres, redis = f"postgresql://ada:{ODD}@db:5432/onward?application_name=a@b", f"redis://:{ODD}@live:6379/1"
    settings = load_settings(None, {"ONWARD_POSTGRES__URL": postgres, "ONWARD_REDIS__URL": redis})
    given = conninfo_to_dict(settings.postgres.url)
    assert (given["password"], given["host"], given["application_name"]) == (ODD, "db", "a@b")
    options = ConnectionPool.from_url(settings.redis.url).connection_kwargs
    assert (options["password"], options["host"], options["db"]) == (ODD, "live", 1)
    assert {ODD} <= set(secrets_of(settings))
    assert is_secret("postgres.url", postgres)


@pytest.mark.parametrize("password", ["123?4", "123?4@5", "?", "12,3?/4#", "hush?x=1", "12%?"])
def test_a_question_mark_belongs_to_the_password(tmp_path: Path, password: str) -> None:
    url = f"postgresql://ada:{password}@db:5432/onward?application_name=a@b"
    settings = load_settings(None, {"ONWARD_POSTGRES__URL": url})
    given = conninfo_to_dict(settings.postgres.url)
    assert (given["password"], given["host"], given["application_name"]) == (password, "db", "a@b")
    assert {password} <= set(secrets_of(settings))
    assert is_secret("postgres.url", url)


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://ada:123?hush=hush@host/v1", "write `\\?` as %3F"),  # a password, or options
        ("http://ada:hush/123?hush@host:1/v1", "host or port cannot be read"),
    ],
)
def test_what_is_refused_is_named_and_no_piece_of_it_is_shown(name: str, url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        load_settings(None, {name: f'["{url}"]' if name.endswith("URLS") else url})
    assert "hush" not in str(refused.value)
    assert "123" not in str(refused.value)
    assert name.removeprefix("ONWARD_").replace("__", ".").lower() in str(refused.value).lower().replace("__", ".")


HOSTS = ("postgresql://db:5432/x?application_name=a@b", "postgresql://one:1,two:2/x?application_name=a@b")


@pytest.mark.parametrize(
    "url",
    ["postgresql://ada:a%40b@db/x", "postgresql://ada@db/x", "host=db password=a@b", "redis://[::1]:1?x=a@b", *HOSTS],
)
def test_what_is_spelled_as_it_should_be_stays(url: str) -> None:
    assert load_settings(None, {"ONWARD_POSTGRES__URL": url}).postgres.url == url


def test_no_proxy_stands_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"no_proxy": "intern", "http_proxy": "http://proxy:3128"}
    reach_loopback_directly(environment)
    assert environment["no_proxy"] == environment["NO_PROXY"] == "intern,localhost,127.0.0.1,::1"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with httpx.Client() as client:
        for host in ("127.0.0.1:80", "localhost:80", "[::1]:80", "example.org"):
            is_direct = client._transport_for_url(httpx.URL(f"http://{host}/")) is client._transport
            assert is_direct == (host != "example.org")


@pytest.mark.parametrize("name", ["with space", "a#b", "100%", "what?", "it's", 'a"b', "%20", "ü"])
def test_the_store_opens_in_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "store.db"
    path.parent.mkdir()
    open_sqlite(path).close()
    assert [found.name for found in tmp_path.iterdir()] == [name]
    assert path.is_file()
