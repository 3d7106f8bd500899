# ruff: noqa: E501 - programs of one line each
"""Attempts to get out of a sandbox: programs that run inside, each with the wall that it runs against.

A program knows of the world outside what an attacker could at best know: paths, ports and process ids, in `world`. It
prints ESCAPED when it has done what nobody inside may do; most of all, though, the world is looked at from outside."""

from dataclasses import dataclass

PRELUDE = """
import ctypes, errno, json, os, signal, socket, struct, sys, time
world = json.loads(os.environ["WORLD"])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def escaped(*_):
    print("ESCAPED", flush=True)

def each(*acts):
    for act in acts:
        try:
            act()
        except OSError as error:
            print(type(error).__name__, error, flush=True)

def put(path, text):
    with open(path, "w") as file:
        file.write(text)

def reach(family, address, port):
    with socket.socket(family) as channel:
        channel.settimeout(1)
        channel.connect((address, port))
        channel.send(b"x")

def show(path):
    with open(path, errors="replace") as file:
        print(file.read(100_000), flush=True)
"""


@dataclass(frozen=True)
class Attempt:
    """One way to try; `wall` names what is in its way, and what to take away to see it succeed."""

    name: str
    wall: str
    code: str
    over_images: bool = True  # an image's own files may be changed, and its user is 0


FILES = [
    Attempt("read a file by its path", "files", "each(lambda: show(world['secret']))"),
    Attempt(
        "list and read this machine's homes",
        "files",
        "each(lambda: print(os.listdir(world['home'])), lambda: show(world['home'] + '/secret'))",
    ),
    Attempt("read by a symbolic link", "files", "os.symlink(world['secret'], 'link'); each(lambda: show('link'))"),
    Attempt("read by a hard link", "files", "each(lambda: os.link(world['secret'], 'hard'), lambda: show('hard'))"),
    Attempt("climb above the root", "files", "each(lambda: show('/workspace' + '/..' * 40 + world['secret']))"),
    Attempt(
        "climb by the root of the first process",
        "files",
        "each(*(lambda pid=pid: show(f'/proc/{pid}/root' + world['secret']) for pid in (1, 2, 'self')))",
    ),
    Attempt(
        "climb by a working folder that is moved away",
        "files",
        """
os.makedirs('a/b/c'); os.chdir('a/b/c'); each(lambda: os.rename('/workspace/a/b', '/workspace/b'), lambda: os.rename('/workspace/b', '/tmp/b'), lambda: show('../' * 40 + world['secret'].lstrip('/')), lambda: os.chroot('.'), lambda: show(world['secret']))""",
    ),
    Attempt("write over this machine's file", "files", "each(lambda: put(world['canary'], 'changed'))"),
    Attempt(
        "write into the shared workspace's original",
        "files",
        "each(lambda: put(world['workspace'] + '/new', 'x'), lambda: put('/workspace/file', 'changed'))",
    ),
    Attempt(
        "write into this machine's programs",
        "read-only",
        "each(*(lambda p=p: (put(p + '/onward-escape', 'x'), escaped()) for p in ('/usr/bin', '/usr', '/etc', '/.sandbox', '/')))",
        over_images=False,
    ),
    Attempt(
        "write over the supervisor's program",
        "read-only",
        "each(lambda: (open('/proc/1/exe', 'r+b'), escaped()), lambda: (open('/.sandbox/python', 'r+b'), escaped()))",
    ),
    Attempt(
        "open by handle, around all paths",
        "seccomp",
        "each(lambda: (call(303, -100, b'/', ctypes.create_string_buffer(128), ctypes.byref(ctypes.c_int()), 0), escaped()), lambda: (call(304, 0, ctypes.create_string_buffer(128), 0), escaped()))",
    ),
    Attempt(
        "read a descriptor that was left open",
        "descriptors",
        """
for number in range(3, 256):
    try:
        place = os.readlink(f'/proc/self/fd/{number}')
    except OSError:
        continue
    if not place.startswith('/proc/'):
        print('ESCAPED', number, place)""",
    ),
    Attempt(
        "read another folder of this machine by a layer's path",
        "files",
        "each(lambda: print(open('/proc/self/mountinfo').read()), *(lambda p=p: show(p + world['secret']) for p in ('/oldroot', '/newroot', '/host', '/tmp/workspace0', '/changes')))",
    ),
]

MOUNTS = [
    Attempt("mount a file system", "seccomp", "each(lambda: (call(165, b'none', b'/tmp', b'tmpfs', 0, 0), escaped()))"),
    Attempt(
        "mount the root writable again",
        "seccomp",
        "each(lambda: (call(165, b'none', b'/', 0, 32 | 4096, 0), escaped()))",
    ),
    Attempt(
        "unmount what hides /proc",
        "seccomp",
        "each(lambda: (call(166, b'/proc/cmdline', 2), escaped()), lambda: (call(166, b'/proc', 2), escaped()))",
    ),
    Attempt(
        "open a tree of mounts",
        "seccomp",
        "each(lambda: (call(428, -100, b'/', 1), escaped()), lambda: (call(430, b'tmpfs', 0), escaped()))",
    ),
    Attempt(
        "exchange the root",
        "seccomp",
        "each(lambda: (call(155, b'/tmp', b'/tmp'), escaped()), lambda: (call(161, b'/tmp'), escaped()))",
    ),
]

NAMESPACES = [
    Attempt(
        "be root in a namespace of users",
        "seccomp",
        "each(*(lambda f=f: (call(272, f), escaped()) for f in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x80)))",
    ),
    Attempt("clone into a namespace", "seccomp", "each(lambda: (call(56, 0x10000000 | 17, 0, 0, 0, 0), escaped()))"),
    Attempt(
        "clone by the newer call",
        "seccomp",
        """
arguments = struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
each(lambda: (call(435, arguments, len(arguments)), escaped()))""",
    ),
    Attempt(
        "enter the first process's namespaces",
        "seccomp",
        "each(*(lambda n=n: (call(308, os.open(f'/proc/1/ns/{n}', os.O_RDONLY), 0), escaped()) for n in ('mnt', 'pid', 'net', 'user')))",
    ),
    Attempt(
        "write the map of users",
        "files",
        "each(lambda: (put('/proc/self/uid_map', '0 0 1'), escaped()), lambda: (put('/proc/1/uid_map', '0 0 1'), escaped()))",
    ),
]

NETWORK = [
    Attempt(
        "connect to this machine's loopback",
        "network",
        "each(lambda: reach(socket.AF_INET, b'127.0.0.1', world['port']))",
    ),
    Attempt("connect over version 6", "network", "each(lambda: reach(socket.AF_INET6, b'::1', world['port']))"),
    Attempt(
        "connect to this machine's own address",
        "network",
        "each(*(lambda a=a: reach(socket.AF_INET, a.encode(), world['port']) for a in world['addresses']))",
    ),
    Attempt(
        "send a datagram",
        "network",
        "each(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (b'127.0.0.1', world['port'])))",
    ),
    Attempt(
        "ask for the instance's metadata",
        "network",
        "each(lambda: (reach(socket.AF_INET, b'169.254.169.254', 80), escaped()))",
    ),
    Attempt(
        "connect to an abstract socket",
        "network",
        r"each(lambda: socket.socket(socket.AF_UNIX).connect('\0' + world['abstract']))",
    ),
    Attempt(
        "connect to a socket by its path",
        "files",
        "each(lambda: socket.socket(socket.AF_UNIX).connect(world['socket']))",
    ),
    Attempt(
        "speak to the machine's host (vsock)",
        "seccomp",
        "each(lambda: (socket.socket(40, socket.SOCK_STREAM), escaped()))",
    ),
    Attempt(
        "see packets, and the kernel's ciphers",
        "seccomp",
        "each(lambda: (socket.socket(17, socket.SOCK_RAW), escaped()), lambda: (socket.socket(38, 5), escaped()), lambda: (socket.socket(socket.AF_INET, socket.SOCK_RAW, 1), escaped()))",
    ),
]

PROCESSES = [
    Attempt(
        "see this machine's processes",
        "processes",
        """
for pid in (p for p in os.listdir('/proc') if p.isdigit()):
    each(lambda: print(open(f'/proc/{pid}/cmdline', 'rb').read()), lambda: print(open(f'/proc/{pid}/environ', 'rb').read()))""",
    ),
    Attempt(
        "signal a process outside",
        "processes",
        "each(lambda: os.kill(world['victim'], 9), lambda: os.killpg(world['victim'], 9))",
    ),
    Attempt(
        "signal everybody", "processes", "os.fork() or (os.setsid(), each(lambda: os.kill(-1, 15)))\ntime.sleep(0.3)"
    ),
    Attempt(
        "kill the first process",
        "first process",
        "each(lambda: os.kill(1, 9), lambda: os.kill(1, 15), lambda: os.kill(1, 11))\ntime.sleep(0.2)",
    ),
    Attempt(
        "take a process's descriptors",
        "seccomp",
        "each(lambda: (call(438, os.pidfd_open(os.getppid()), 0, 0), escaped()))",
    ),
    Attempt(
        "trace the first process",
        "seccomp",
        "each(lambda: (call(101, 16, 1, 0, 0), escaped()), lambda: (call(101, 0x4206, 1, 0, 0), escaped()))",
    ),
    Attempt(
        "trace one of its own",
        "seccomp",
        "pid = os.fork() or time.sleep(5)\neach(lambda: (call(101, 16, pid, 0, 0), escaped()))\nos.kill(pid, 9)",
    ),
    Attempt(
        "read the supervisor's memory and descriptors",
        "looking",
        """
each(*(lambda p=p: (open(p, 'rb').read(1), escaped()) for p in ('/proc/1/mem', '/proc/1/environ', '/proc/1/maps', f'/proc/{os.getppid()}/mem')),
     *(lambda p=p, n=n: (open(f'/proc/{p}/fd/{n}', 'rb'), escaped()) for p in (1, os.getppid()) for n in range(20)),
     *(lambda p=p, n=n: (os.readlink(f'/proc/{p}/fd/{n}'), escaped()) for p in (1, os.getppid()) for n in range(20)))""",
    ),
    Attempt(
        "write another's memory",
        "seccomp",
        "each(lambda: (call(310, 1, 0, 0, 0, 0, 0), escaped()), lambda: (call(311, 1, 0, 0, 0, 0, 0), escaped()))",
    ),
    Attempt(
        "outrank everybody",
        "nobody",
        "each(lambda: (os.setpriority(os.PRIO_PROCESS, 0, -20), escaped()), lambda: (os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)), escaped()))",
    ),
]

KERNEL = [
    Attempt(
        "set the clock",
        "seccomp",
        "each(lambda: (time.clock_settime(time.CLOCK_REALTIME, 0), escaped()), lambda: (call(164, struct.pack('qq', 0, 0), 0), escaped()), lambda: (call(159, ctypes.create_string_buffer(208)), escaped()))",
    ),
    Attempt("set the machine's name", "seccomp", "each(lambda: (socket.sethostname('escaped'), escaped()))"),
    Attempt(
        "write the kernel's settings",
        "read-only",
        "each(*(lambda p=p: (put(p, '1'), escaped()) for p in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger')))",
    ),
    Attempt(
        "read the kernel's memory",
        "files",
        "each(*(lambda p=p: (open(p, 'rb').read(1) and escaped()) for p in ('/proc/kcore', '/dev/mem', '/dev/kmem', '/proc/kallsyms')))",
    ),
    Attempt(
        "read the kernel's log",
        "seccomp",
        "each(lambda: (call(103, 3, ctypes.create_string_buffer(1000), 1000), escaped()), lambda: show('/dev/kmsg'))",
    ),
    Attempt(
        "keep a key in a ring",
        "seccomp",
        "each(lambda: (call(248, b'user', b'escape', b'x', 1, -4), escaped()), lambda: (call(250, 0, -4, 0), escaped()), lambda: (call(249, b'user', b'escape', 0, 0), escaped()))",
    ),
    Attempt(
        "load a program into the kernel",
        "seccomp",
        "each(lambda: (call(321, 0, ctypes.create_string_buffer(128), 128), escaped()), lambda: (call(175, b'x', 1, b''), escaped()), lambda: (call(246, 0, 0, 0, 0), escaped()))",
    ),
    Attempt(
        "measure the kernel, and fault in user space",
        "seccomp",
        "each(lambda: (call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0), escaped()), lambda: (call(323, 1), escaped()), lambda: (call(425, 1, ctypes.create_string_buffer(256)), escaped()))",
    ),
    Attempt(
        "call as a 32-bit program does", "seccomp", "each(lambda: (call(0x40000000 + 272, 0x10000000), escaped()))"
    ),
    Attempt(
        "type into a terminal",
        "seccomp",
        "each(lambda: (call(16, 0, 0x5412, b'x'), escaped()), lambda: (call(16, 0, ctypes.c_ulong(0x100005412), b'x'), escaped()))",
    ),
    Attempt(
        "make a device",
        "nobody",
        "each(*(lambda n=n: (os.mknod(f'dev{n}', 0o60666, os.makedev(n, 0)), escaped()) for n in (1, 8, 253, 254)))",
    ),
    Attempt(
        "open this machine's devices",
        "devices",
        "each(*(lambda d=d: (os.open(d, os.O_RDONLY | os.O_NONBLOCK), escaped()) for d in world['devices']))",
    ),
]

RIGHTS = [
    Attempt(
        "become root",
        "nobody",
        "each(lambda: os.getuid() == 0 or (os.setuid(0), escaped()), lambda: (os.setgroups([0]), escaped()), lambda: (os.setresuid(world['nobody'], world['nobody'], world['nobody']), escaped()))",
    ),
    Attempt(
        "have a capability",
        "nobody",
        """
told = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
if any(int(told[name], 16) for name in ('CapPrm', 'CapEff', 'CapInh', 'CapAmb', 'CapBnd')) or told['NoNewPrivs'].strip() != '1':
    escaped()""",
    ),
    Attempt(
        "give a program its owner's rights",
        "set-user-id",
        """
put('own', '#!/bin/sh'); os.chmod('own', 0o6755)
each(lambda: os.chown('own', 0, 0) or (os.chmod('own', 0o4755), escaped()))""",
        over_images=False,
    ),
    Attempt(
        "run programs with their owner's rights",
        "set-user-id",
        """
for name in ('su', 'passwd', 'mount', 'newgrp', 'chsh', 'sudo', 'pkexec'):
    if os.path.exists(f'/usr/bin/{name}'):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(reader, 0)
            os.execv(f'/usr/bin/{name}', [name])
        time.sleep(0.05)
        told = dict(line.split(':', 1) for line in open(f'/proc/{pid}/status').read().splitlines())
        if len(set(told['Uid'].split())) > 1 or int(told['CapEff'], 16):
            escaped()
        os.kill(pid, 9)""",
    ),
    Attempt(
        "leave the control group",
        "control groups",
        """
each(*(lambda p=p: (put(p + '/cgroup.procs', str(os.getpid())), escaped()) for p in ('/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/fs/cgroup/pids', '/sys/fs/cgroup/unified')),
     lambda: (call(165, b'none', b'/tmp', b'cgroup2', 0, 0), escaped()), lambda: (call(165, b'none', b'/tmp', b'cgroup', 0, b'memory'), escaped()))
time.sleep(0.2)""",
    ),
    Attempt("raise its own limits", "nobody", "each(lambda: (call(302, 0, 4, struct.pack('QQ', 1, 1), 0), escaped()))"),
    Attempt(
        "find a key in the environment",
        "environment",
        "print(dict(os.environ)); each(lambda: show('/proc/self/environ'), lambda: show('/proc/1/environ'))",
    ),
]

IMAGES = [
    Attempt(
        "write into the image that others stand on",
        "read-only",
        "each(lambda: put('/bin/cat', 'changed'), lambda: put('/app/readme', 'changed'), lambda: put('/new', 'x'), lambda: put(world['workspace'] + '/../image/new', 'x'))",
    ),
    Attempt(
        "replace the supervisor of the next one",
        "read-only",
        "each(lambda: put('/.sandbox/python', 'changed'), lambda: os.rename('/.sandbox', '/gone'), lambda: os.rmdir('/.sandbox'))",
    ),
]

QUIET = [*FILES, *MOUNTS, *NAMESPACES, *NETWORK, *PROCESSES, *KERNEL, *RIGHTS, *IMAGES]
