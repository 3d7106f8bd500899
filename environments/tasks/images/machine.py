"""The programs of this machine as an unpacked image, for Dockerfiles whose base `machine` stands for.

It holds /usr by hard links where the disk allows, the packages' own records so that more can be installed, and of
/etc what programs need: no home, no key and no address of a mirror."""

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from blake3 import blake3

from environments.errors import InfrastructureFailure

_LINKED = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "var/lib/dpkg")
_COPIED = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "dpkg", "gai.conf"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "mime.types", "nsswitch.conf"),
    *("os-release", "pam.d", "profile", "protocols", "services", "skel", "ssl/certs", "ssl/openssl.cnf"),
)
_EMPTY = (
    *("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp"),
    *("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log/apt", "var/tmp"),
)
_FIRST_PERSON = 1000  # ids from here on are people's


def digest() -> str:
    """Return the digest of this machine's system and of what is installed."""
    status = Path("/var/lib/dpkg/status")
    installed = status.read_bytes() if status.is_file() else b""
    said = f"{sorted(platform.freedesktop_os_release().items())} {platform.machine()}"
    return str(blake3(said.encode() + installed).hexdigest())[:32]


def root(folder: Path) -> Path:
    """Return the unpacked image, made below `folder` where it is not there yet. Raises InfrastructureFailure."""
    made = folder / f"machine-{digest()}"
    if made.is_dir():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=folder, prefix=".machine."))
    try:
        _fill(making)
        making.chmod(0o755)
        os.rename(making, made)
    except OSError as error:
        if not made.is_dir():  # no other process was sooner
            raise InfrastructureFailure("image", f"this machine's programs cannot be gathered: {error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return made


def _fill(making: Path) -> None:
    for name in _EMPTY:
        (making / name).mkdir(parents=True, exist_ok=True)
    (making / "tmp").chmod(0o1777)
    (making / "var/tmp").chmod(0o1777)
    for name in _LINKED:
        source, target = Path("/") / name, making / name
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            _linked(source, target)
    for name in _COPIED:
        source, target = Path("/etc") / name, making / "etc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy(source, target)
    (making / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    for name in ("passwd", "group"):
        lines = Path(f"/etc/{name}").read_text().splitlines(keepends=True)
        kept = [line for line in lines if int(line.split(":")[2]) < _FIRST_PERSON or line.startswith("nobody:")]
        (making / "etc" / name).write_text("".join(kept))


def _linked(source: Path, target: Path) -> None:
    """Copy a folder by hard links, or whole where the disk or the kernel refuses links."""
    if subprocess.run(["cp", "-a", "--link", source, target], capture_output=True).returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run(["cp", "-a", "--reflink=auto", source, target], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(done.stderr[-300:])
