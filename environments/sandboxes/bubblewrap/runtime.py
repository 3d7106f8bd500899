"""The Python that runs inside every sandbox, whatever files that sandbox is made of.

It is this machine's interpreter, with its loader, its libraries and those modules alone that the supervisor needs: a
folder of some 33 MB, made once, and mounted read-only where an image has no Python, or another C library."""

import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes import owners
from environments.sandboxes.bubblewrap import seccomp

PLACE = "/.sandbox"  # where it lies inside
_ROOT = Path(__file__).resolve().parents[3]
_MODULES = ("command", "files", "process", "supervisor", "trees")
_LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
_PROBE = """
import json, sys
sys.path.append(sys.argv[1])
import encodings.utf_8, tarfile, warnings, environments.sandboxes.inside.supervisor
files = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps([files, sorted(mapped)]))
"""
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def start(control: int, limits: list[int]) -> list[str]:
    """Return the command that starts the supervisor inside."""
    code = "from environments.sandboxes.inside.supervisor import main; main()"
    loader = [f"{PLACE}/so/loader", "--library-path", f"{PLACE}/so", f"{PLACE}/python"]
    return [*loader, "-s", "-S", "-B", "-P", "-c", code, str(control), *map(str, limits)]


def build(directory: Path) -> Path:
    """Return the folder of this version in `directory`, made where there is none: `inside`, `etc` and the filters.

    Raises InfrastructureFailure."""
    made = directory / f"runtime-{_digest()}"
    if made.exists():
        return made
    being_made = owners.folder_in_the_making(directory, "runtime")
    try:
        _fill(being_made)
        being_made.chmod(0o755)
        os.rename(being_made, made)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(being_made, ignore_errors=True)
        if not made.exists():  # no other process was first
            raise InfrastructureFailure("sandbox", f"its Python cannot be made: {error}") from error
    return made


def _digest() -> str:
    hashed = hashlib.blake2b(sys.version.encode(), digest_size=8)
    hashed.update(repr((_PROBE, _ETC, seccomp.programs())).encode())
    for name in _MODULES:
        hashed.update((_ROOT / f"environments/sandboxes/inside/{name}.py").read_bytes())
    return hashed.hexdigest()


def _fill(made: Path) -> None:
    for name, content in _ETC.items():
        _place(made / "etc" / name).write_text(content)
    for number, rules in enumerate(seccomp.programs()):
        (made / f"filter.{number}").write_bytes(rules)
    program = os.path.realpath(sys.executable)
    command = [program, "-I", "-S", "-c", _PROBE, str(_ROOT)]
    modules, libraries = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    inside = made / "inside"
    shutil.copy(program, _place(inside / "python"))
    for library in libraries:
        if "lib-dynload" not in library:
            _copy_library(Path(library), _place(inside / "so" / "loader").parent)
    for name, file in modules.items():
        if name not in ("__main__", "os.path"):
            _copy_module(name, Path(file), inside / _LIBRARY)
    (inside / _LIBRARY / "lib-dynload").mkdir(exist_ok=True)


def _copy_library(library: Path, folder: Path) -> None:
    """Copy a library under each name by which others may ask for it: a.so.1.2 is also a.so.1 and a.so."""
    if library.name.startswith("ld-"):
        shutil.copy(library, folder / "loader")
        return
    shutil.copy(library, folder / library.name)
    shorter = library.name
    while not shorter.endswith(".so"):
        shorter = shorter.rpartition(".")[0]
        (folder / shorter).symlink_to(library.name)


def _copy_module(name: str, file: Path, library: Path) -> None:
    if file.suffix == ".so":
        shutil.copy(file, _place(library / "lib-dynload" / file.name))
        return
    path = name.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py")
    shutil.copy(file, _place(library / path))
    py_compile.compile(
        str(library / path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def _place(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
