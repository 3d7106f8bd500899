"""The first process of a sandbox. It holds no loop of its own work: each command is handed to a process that it forks.

The owner sends five descriptors by the control socket: the request, the command's stdin, stdout and stderr, and a
socket for its status. On the word `end` everything else inside is ended, by this process, which nobody inside can stop.
When the owner's end closes, this process ends, and the kernel ends all others with it."""

import _socket
import os
import select
import struct
import sys

from environments.sandboxes.inside import command, process, trees

_GIVEN = struct.Struct("5i")


def main() -> None:
    """Serve until the owner is gone: `main CONTROL [LIMIT...]`, descriptors all of them."""
    control, *limits = (int(argument) for argument in sys.argv[1:])
    for descriptor in (control, *limits):
        os.set_inheritable(descriptor, False)
    process.forbid_looking()
    _Supervisor(_socket.socket(fileno=control), limits).serve()


class _Supervisor:
    def __init__(self, control: _socket.socket, limits: list[int]) -> None:
        self._control, self._limits = control, limits
        self._children: dict[int, int] = {}  # the process id of each by its descriptor
        self._poll = select.poll()

    def serve(self) -> None:
        self._poll.register(self._control, select.POLLIN)
        self._control.send(b"ready")
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    self._start()
                elif descriptor in self._children:  # and not yet ended with all
                    self._reap(descriptor)

    def _start(self) -> None:
        told, ancillary, *_ = self._control.recvmsg(16, _socket.CMSG_LEN(_GIVEN.size))
        if not told:
            os._exit(0)
        if told == b"end":
            self._end_all()
            return
        descriptors = _GIVEN.unpack(ancillary[0][2])
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        pid = os.fork()
        if pid == 0:
            try:
                self._control.close()
                command.serve(descriptors, self._limits)
            finally:
                os._exit(70)
        for descriptor in descriptors:
            os.close(descriptor)
        watched = os.pidfd_open(pid)
        self._children[watched] = pid
        self._poll.register(watched, select.POLLIN)

    def _end_all(self) -> None:
        for watched in self._children:
            self._poll.unregister(watched)
            os.close(watched)
        self._children.clear()
        trees.kill_below(os.getpid())
        try:
            while True:
                os.wait()
        except ChildProcessError:
            self._control.send(b"ended")

    def _reap(self, watched: int) -> None:
        self._poll.unregister(watched)
        os.close(watched)
        _, status = os.waitpid(self._children.pop(watched), 0)
        if os.WIFSIGNALED(status):  # by what it watched over, whose processes are orphans now
            trees.kill_below(os.getpid(), self._children.values())
            while orphans := trees.children(os.getpid()) - set(self._children.values()):
                for pid in orphans:
                    os.waitpid(pid, 0)
