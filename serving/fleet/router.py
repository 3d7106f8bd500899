"""The choice of a replica for a request, as pure functions.

Requests of one session go to one replica, where their prefix is cached: rendezvous hashing (Thaler and Ravishankar,
IEEE/ACM Transactions on Networking 6(1), 1998), by which a replica that leaves moves its own sessions and no others. A
replica much busier than the rest passes what is above its share on to the session's next one: consistent hashing with
bounded loads (Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350), with some slack, for at low loads a cached prefix is
worth more than an even spread."""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence

from core.ids import PolicyRef
from serving.fleet.snapshot import FleetSnapshot, Replica

_BOUND = 1.25  # times the mean load
_SLACK = 4  # requests


def choose(
    snapshot: FleetSnapshot,
    version: PolicyRef | None,
    cache_key: str | None,
    load: Mapping[str, int],
    suspects: Collection[str] = (),
) -> list[Replica]:
    """Return the replicas that may answer, the best first.

    `load`: running requests by replica; `suspects`: replicas that failed a moment ago, which come last."""
    able = [replica for replica in snapshot.replicas if replica.answers(version)]
    ranked = sorted(able, key=lambda replica: _idle_first(replica, load))
    if cache_key is not None:
        ranked = sorted(able, key=lambda replica: _weight(cache_key, replica.name), reverse=True)
    bound = _load_bound(able, load)
    return sorted(ranked, key=lambda r: (r.name in suspects, load.get(r.name, 0) >= bound))


def _idle_first(replica: Replica, load: Mapping[str, int]) -> tuple[int, str]:
    return load.get(replica.name, 0), replica.name


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=16).digest()


def _load_bound(replicas: Sequence[Replica], load: Mapping[str, int]) -> int:
    """Return the number of running requests from which a replica gets no more while others have fewer."""
    total = sum(load.get(replica.name, 0) for replica in replicas)
    return math.ceil(_BOUND * (total + 1) / max(1, len(replicas))) + _SLACK
