"""Files with the addresses of a directory's services, for programs on the same machine."""

import json
import os
import shlex
import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from core.errors import ConfigError
from core.network.addresses import family_of
from onward.directory.layout import Layout

_LARGEST_PID: Final = (1 << 31) - 1  # 0 and less mean groups of processes


class _Address(msgspec.Struct):
    """What a command reads of the address that a service wrote."""

    pid: Annotated[int, Meta(ge=1, le=_LARGEST_PID)]
    urls: Annotated[list[str], Meta(min_length=1)]
    certificate: str | None = None


_decode = msgspec.json.Decoder(_Address).decode


def write_address(path: Path, url: str, urls: list[str] | None = None, certificate: Path | None = None) -> None:
    """Write the address of this process; `certificate` when it speaks TLS."""
    known = {"pid": os.getpid(), "url": url, "urls": urls or [url]}
    if certificate is not None:
        known["certificate"] = str(certificate.resolve())
    _write_whole(path, json.dumps(known))


def announce(path: Path, urls: list[str], certificate: Path | None) -> None:
    """Write this process into a file: its pid and URL, and the URLs of those that serve beside it.

    A supervisor, which knows the rest, needs the pid alone."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".json":
        write_address(path, urls[0], urls, certificate)
    else:
        write_pid(path)


def refuse_folder(path: Path) -> None:
    """Raise ConfigError where a folder has the name of the file that this process will write."""
    if path.is_dir():
        raise ConfigError(f"{path}: a folder, where the service writes a file with its address: move it away")


def write_pid(path: Path) -> None:
    """Write the pid of this process."""
    _write_whole(path, str(os.getpid()))


def own_address(layout: Layout) -> Path:
    """Return the file for this process's own address, as one of several replicas."""
    return layout.api(_name(os.getpid()))


def address_of(layout: Layout, pid: int | None) -> str:
    """Return the URL of a replica on this machine that is ready."""
    assert pid is not None
    return str(json.loads(layout.api(_name(pid)).read_text())["url"])


def find_urls(directory: Path) -> list[str]:
    """Return the URLs of the services that run on a directory. Raises ConfigError when there is none."""
    return _find(directory).urls


def find_certificate(directory: Path) -> Path | None:
    """Return the certificate of the services, None when they speak no TLS. Raises ConfigError when none runs."""
    found = _find(directory).certificate
    return None if found is None else Path(found)


def _find(directory: Path) -> _Address:
    layout = Layout.of(directory)
    candidates = [layout.address, *sorted(layout.apis.glob(f"{_name('*')}.json"))]
    for path in candidates:
        try:
            found = _decode(path.read_bytes())
        except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
            continue  # none, or not what a service wrote
        if _is_alive(found.pid):
            return found
    raise ConfigError(f"{directory}: no service runs here (`onward run {shlex.quote(str(directory))}` starts one)")


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a concurrent reader finds nothing, or all of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _name(pid: int | str) -> str:
    """Several machines may share a directory."""
    return f"{socket.gethostname()}-{pid}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def free_port(host: str) -> int:
    """Nobody listens there now."""
    with socket.create_server((host, 0), family=family_of(host)) as server:
        return int(server.getsockname()[1])
