"""Fetching a file of a version from another host of the fleet instead of from the blobs, which one host alone reads.

A host says that it fetches a file before it asks the others for it. It waits for one that has it, or that fetches it
and whose name comes before its own: so of hosts that begin together the first by name reads the blobs, and nobody waits
in a circle. Each gives a file to a few at once, and whoever has it gives it on: their number doubles."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
from blake3 import blake3

from serving.weights.deltas.manifest import File
from serving.weights.sharing.kept_files import KeptFiles
from serving.weights.sharing.server import FETCHER, path_of

_TIMEOUT = httpx.Timeout(30.0, connect=2.0)
_LOOK_S = 0.1  # whether a host that was busy, or fetched the file itself, can give it now
logger = logging.getLogger(__name__)
Answer = Literal["given", "later", "no", "spoilt"]


@dataclass(frozen=True)
class Peer:
    name: str
    url: str


class Peers:
    """The other hosts, seen by the host called `name`; `others` is asked for them anew each time."""

    def __init__(self, name: str, kept: KeptFiles, others: Callable[[], Sequence[Peer]]) -> None:
        self._name, self._kept, self._others = name, kept, others

    def obtain(self, digest: str, file: File, target: Path, fetch: Callable[[], object]) -> None:
        """Put a file of the version with this digest at `target`, verified.

        `fetch` does so from the blobs, when no other host has it nor is about to. Raises what `fetch` raises."""
        with self._kept.fetching(file.checksum, self._name):
            if self._kept.lend(file, target):
                return
            if not self._given(file, target):
                fetch()
            self._kept.keep(digest, file, target)

    def _given(self, file: File, target: Path) -> bool:
        """Return whether another host gave the file; False when the blobs are to be read."""
        refused: set[Peer] = set()
        with httpx.Client(timeout=_TIMEOUT) as client:
            while True:
                answers = set()
                for peer in self._shuffled(refused):
                    answer = self._ask(client, peer, file, target)
                    if answer == "given":
                        return True
                    if answer == "spoilt":
                        refused.add(peer)
                    answers.add(answer)
                if "later" not in answers:
                    return False
                time.sleep(_LOOK_S)

    def _shuffled(self, refused: set[Peer]) -> list[Peer]:
        """Return the others in any order, so that those who have a file share the work."""
        peers = [peer for peer in self._others() if peer not in refused]
        return random.sample(peers, len(peers))

    def _ask(self, client: httpx.Client, peer: Peer, file: File, target: Path) -> Answer:
        try:
            with client.stream("GET", peer.url + path_of(file.checksum)) as response:
                match response.status_code:
                    case 200:
                        return _receive(response, peer, file, target)
                    case 202:
                        return "later" if response.headers.get(FETCHER, "") < self._name else "no"
                    case 503:
                        return "later"
        except httpx.HTTPError as error:
            logger.info("%s gives no weights: %r", peer.url, error)
            target.unlink(missing_ok=True)
        return "no"


def _receive(response: httpx.Response, peer: Peer, file: File, target: Path) -> Answer:
    checksum, size = blake3(), 0
    with target.open("xb") as written:
        for piece in response.iter_raw():
            size += len(piece)
            if size > file.bytes:
                break
            checksum.update(piece)
            written.write(piece)
    if size == file.bytes and checksum.hexdigest() == file.checksum:
        return "given"
    logger.warning("%s gave another file than %s: it is not asked for it again", peer.url, file.checksum)
    target.unlink()
    return "spoilt"
