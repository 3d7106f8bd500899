"""Each wall is what keeps the attempts in: where one is taken away, they get out, and the tests would say so."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attempts import QUIET
from sandboxed import require_bubblewrap
from world import LIBRARY, World, attempt, escapes, world

from environments.sandboxes.bubblewrap import adapter, opened, runtime
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.mounts import BASE
from environments.sandboxes.bubblewrap.plan import BoundFolder, Plan
from environments.sandboxes.sandbox import Limits, SandboxSpec

MB = 1 << 20
NARROW = Limits(memory_bytes=64 * MB, disk_bytes=32 * MB, processes=24, output_bytes=100_000)
WIDE = Limits(memory_bytes=256 * MB, disk_bytes=128 * MB, processes=100, output_bytes=10 * MB)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[World]:
    require_bubblewrap()
    if os.geteuid() != 0:
        pytest.skip("walls are taken away as root")
    (tmp_path / "world").mkdir()
    with world(tmp_path / "world") as made:
        yield made


def without(plan: Plan, *arguments: str) -> None:
    for argument in arguments:
        plan.arguments.remove(argument)


def before_the_program(plan: Plan, *arguments: str) -> None:
    place = plan.arguments.index("--chdir")
    plan.arguments[place:place] = arguments


def without_files(plan: Plan, outside: World) -> None:
    plan.user = 0
    plan.trees.append(BoundFolder(str(outside.folder), "machine"))
    before_the_program(plan, "--ro-bind", f"{BASE}/machine", str(outside.folder))


def without_network(plan: Plan, outside: World) -> None:
    without(plan, "--unshare-net")


def without_processes(plan: Plan, outside: World) -> None:
    without(plan, "--unshare-pid", "--as-pid-1")
    place = plan.arguments.index("--proc")
    plan.arguments[place : place + 2] = ["--ro-bind", "/proc", "/proc"]


def without_filter(plan: Plan, outside: World) -> None:
    open_door = outside.folder.parent / "filter"
    open_door.write_bytes(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # return SECCOMP_RET_ALLOW
    plan.filters = (str(open_door), str(open_door))


def without_read_only(plan: Plan, outside: World) -> None:
    place = len(plan.arguments) - 1 - plan.arguments[::-1].index("--remount-ro")
    assert plan.arguments[place + 1] == "/"
    del plan.arguments[place : place + 2]


def without_devices(plan: Plan, outside: World) -> None:
    plan.user = 0
    place = plan.arguments.index("--dev")
    plan.arguments[place : place + 2] = ["--dev-bind", "/dev", "/dev"]
    place = plan.arguments.index("--remount-ro")
    del plan.arguments[place : place + 2]


def without_control_groups(plan: Plan, outside: World) -> None:
    plan.user = 0
    place = plan.arguments.index("--proc")
    plan.arguments[place:place] = ["--bind", "/sys/fs/cgroup", "/sys/fs/cgroup"]


def with_capabilities(plan: Plan, outside: World) -> None:
    plan.arguments[plan.arguments.index("--cap-drop")] = "--cap-add"


def hosts_can_be_spoken_to() -> bool:
    """Tell whether this kernel knows such sockets at all."""
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


WALLS: dict[str, tuple[Callable[[Plan, World], None], set[str]]] = {
    "files": (without_files, {"read a file by its path", "read by a symbolic link", "climb above the root"}),
    "network": (
        without_network,
        {"connect to this machine's loopback", "connect to an abstract socket", "send a datagram"},
    ),
    "processes": (without_processes, {"see this machine's processes"}),
    "seccomp": (
        without_filter,
        {
            "keep a key in a ring",
            "trace one of its own",
            "speak to the machine's host (vsock)",
        },
    ),
    "read-only": (without_read_only, {"write into this machine's programs"}),
    "devices": (without_devices, {"open this machine's devices"}),
    "control groups": (without_control_groups, {"leave the control group"}),
    "nobody": (with_capabilities, {"have a capability"}),
}


@pytest.mark.parametrize("wall", WALLS)
def test_without_its_wall_an_attempt_gets_out(wall: str, outside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away, wanted = WALLS[wall]
    if not hosts_can_be_spoken_to():
        wanted = wanted - {"speak to the machine's host (vsock)"}
    fill = adapter.plans.fill

    def fill_without(plan: Plan, *arguments: object) -> None:
        fill(plan, *arguments)  # type: ignore[arg-type]
        take_away(plan, outside)

    monkeypatch.setattr(adapter.plans, "fill", fill_without)
    for way in QUIET:
        if way.name in wanted:
            assert found(outside, way.code), way.name


def test_without_an_environment_of_its_own_it_reads_keys(outside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", outside.token)
    monkeypatch.setattr(opened, "standing_environment", lambda spec: dict(os.environ))
    (way,) = [way for way in QUIET if way.wall == "environment"]
    assert found(outside, way.code)


SUPERVISORS = {
    "looking": ("process", "_set(_PR_SET_DUMPABLE, 0)", "pass"),
    "descriptors": (
        "supervisor",
        "for descriptor in descriptors:\n            os.set_inheritable(descriptor, False)",
        "pass",
    ),
}


@pytest.mark.parametrize("wall", SUPERVISORS)
def test_with_a_careless_supervisor_an_attempt_gets_out(wall: str, outside: World) -> None:
    module, careful, careless = SUPERVISORS[wall]
    made = runtime.build(outside.folder.parent / "state")
    (place,) = made.glob(f"inside/lib/python*/environments/sandboxes/inside/{module}.py")
    text = place.read_text()
    assert careful in text
    place.write_text(text.replace(careful, careless))
    for compiled in place.parent.glob(f"__pycache__/{module}.*"):
        compiled.unlink()
    (way,) = [way for way in QUIET if way.wall == wall]
    assert found(outside, way.code)


GREED = {
    "memory": "kept = [bytearray(1 << 20) for _ in range(150)]; escaped()",
    "disk": "each(lambda: [put(f'f{n}', 'x' * (1 << 20)) for n in range(60)] and escaped())",
    "processes": "each(lambda: [os.fork() or (time.sleep(1), os._exit(0)) for n in range(50)] and escaped())",
    "output": r"print(('x' * 99 + '\n') * 2000, 'ESCAPED', sep='\n')",
}


@pytest.mark.parametrize("code", GREED.values(), ids=GREED)
def test_only_wider_limits_let_it_take_more(code: str, outside: World) -> None:
    assert found(outside, code, WIDE)
    assert not found(outside, code, NARROW)


def found(outside: World, code: str, limits: Limits = NARROW) -> list[str]:
    """Return what an attempt reaches in a sandbox of its own."""

    async def act() -> list[str]:
        bubblewrap = Bubblewrap(outside.folder.parent / "state")
        try:
            sandbox = await bubblewrap.open(SandboxSpec(outside.workspace, folders=LIBRARY, limits=limits))
            return escapes(await attempt(sandbox, code, outside), outside)
        finally:
            await bubblewrap.close()

    return asyncio.run(act())
