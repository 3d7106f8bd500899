"""What a command writes, read without trust: so much is kept, the rest is counted, and nobody is flooded."""

import asyncio
import contextlib
import os

_PIECE = 1 << 16
_MOST_LEFT_IN_A_PIPE = 1 << 20
_PAUSE_SECONDS = 0.005  # between two pieces of what is left out: a flood meets a full pipe, not this process


class Output:
    """One stream of a command: a pipe, of which the command gets the end to write to."""

    def __init__(self, most_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._from, self.to = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.to, True)
        self._most_bytes = most_bytes
        self._kept = bytearray()
        self._pause: asyncio.TimerHandle | None = None
        self._watching = False
        self.cut_bytes = 0
        self._watch()

    def given_away(self) -> None:
        """Close the command's end here, now that the command has its own."""
        os.close(self.to)
        self.to = -1

    def content(self) -> bytes:
        """Take what is left and stop reading. What still runs and writes there is told that nobody reads (EPIPE)."""
        left = _MOST_LEFT_IN_A_PIPE
        with contextlib.suppress(BlockingIOError):
            while left > 0 and (taken := self._take()):
                left -= taken
        self.close()
        return bytes(self._kept)

    def close(self) -> None:
        self._stop_watching()
        for descriptor in (self._from, self.to):
            if descriptor >= 0:
                os.close(descriptor)
        self._from = self.to = -1

    def _watch(self) -> None:
        self._pause = None
        self._watching = True
        self._loop.add_reader(self._from, self._read)

    def _stop_watching(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._from)

    def _read(self) -> None:
        try:
            taken = self._take()
        except BlockingIOError:
            return
        if not taken:  # nobody can write there any more
            self._stop_watching()
        elif self.cut_bytes:
            self._stop_watching()
            self._pause = self._loop.call_later(_PAUSE_SECONDS, self._watch)

    def _take(self) -> int:
        piece = os.read(self._from, _PIECE)
        room = self._most_bytes - len(self._kept)
        self._kept += piece[:room]
        self.cut_bytes += max(0, len(piece) - room)
        return len(piece)
