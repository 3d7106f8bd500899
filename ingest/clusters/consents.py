"""Words of consent as they travel between clusters: each puts its own, and gives the others' with their time.

home, or an edge ──consents/NAME/000000000007.json──► all others, each of which gives it once, and obeys it

Words are of keyed hashes: clusters share `api.user_hash_key`. They are read by their numbers, without gaps, and not
from listings, which may leave some out; a listing says only which clusters have any."""

import logging
from datetime import datetime
from typing import Final

import msgspec

from core.events import Topic, TopicPartition
from core.operations.consents import Consent
from core.ports import Clock, Store
from core.records.clusters import ConsentNotice
from core.records.consent_words import give, takes_reason
from core.store.work import View
from ingest.clusters.bucket import STATUS_EVERY, Bucket

_AT_ONCE: Final = 100  # words, so that nothing else waits long
_MOST_ORDERS: Final = 1000
_PUT: Final = "consents"
"""The group whose offset says up to which number this store's words were put, where they are its own."""
_PLACE: Final = TopicPartition(Topic.TURNS, 0)  # groups count by topic; these have one number each
logger = logging.getLogger(__name__)


class TravellingConsents:
    """One cluster's part. Killed between two steps, it puts and gives nothing twice.

    How many words of a cluster are given, and of its own are put, is in the store: groups `consents:NAME`."""

    def __init__(self, store: Store, bucket: Bucket, cluster: str, clock: Clock) -> None:
        self._store, self._bucket, self._cluster, self._clock = store, bucket, cluster, clock
        self._last: dict[str, int] = {}  # each cluster's last word, as far as a listing said
        self._listed_at: datetime | None = None

    def look(self) -> bool:
        """Put what is new, give what is new; return whether there may be more. Raises Unavailable."""
        self._list()
        is_more = [self._put_own(), *map(self._give_of, self._last)]
        return any(is_more)

    def _list(self) -> None:
        now = self._clock.now()
        if self._listed_at is None or now - self._listed_at >= STATUS_EVERY:
            self._last, self._listed_at = self._bucket.last_words(), now

    def _put_own(self) -> bool:
        with self._store.look() as view:
            words = view.consents.after(_reached(view, _PUT), _AT_ONCE)
        for word in words:
            if word.origin is None:
                self._put(word)
        if words:
            with self._store.work() as work:
                work.offsets.put(_PUT, _PLACE, words[-1].consent_id)
        return len(words) == _AT_ONCE

    def _put(self, word: Consent) -> None:
        """Put a word under the next number; what lies there already is this word, or one that this store has lost."""
        group = _group(self._cluster)
        with self._store.look() as view:
            number = _reached(view, group) + 1
        while (there := self._bucket.word(self._cluster, number)) is not None and not _is_same(there.word, word):
            self._give(there)
            number += 1
        self._bucket.put_word(ConsentNotice(origin=self._cluster, number=number, word=word))
        with self._store.work() as work:
            work.offsets.put(group, _PLACE, number)
            work.offsets.put(_PUT, _PLACE, word.consent_id)

    def _give_of(self, cluster: str) -> bool:
        """Give what a cluster put, also this one where its store was restored from a backup."""
        with self._store.look() as view:
            first = _reached(view, _group(cluster)) + 1
        for number in range(first, first + _AT_ONCE):
            notice = self._bucket.word(cluster, number)
            if notice is None:
                if number <= self._last[cluster]:
                    logger.error("consents/%s: word %d is missing, and those after it wait for it", cluster, number)
                    self._last[cluster] = 0  # said once for each listing
                return False
            self._give(notice)
        return True

    def _give(self, notice: ConsentNotice) -> None:
        """Give a word and note it, in one transaction. Its reason may have been erased before it came."""
        word, group = notice.word.told_by(notice.origin), _group(notice.origin)
        with self._store.work() as work:
            work.consents.hold()
            if _reached(work, group) != notice.number - 1:  # another process gave it
                return
            orders = work.erasures.newest(word.namespace, _MOST_ORDERS) if word.why else ()
            if any(takes_reason(order)(word) for order in orders):
                word = msgspec.structs.replace(word, why="")
            given = give(work, word, self._clock.now())
            work.offsets.put(group, _PLACE, notice.number)
        logger.info("word %d of consent is %d of the cluster %s", given.consent_id, notice.number, notice.origin)


def _group(cluster: str) -> str:
    return f"consents:{cluster}"


def _reached(view: View, group: str) -> int:
    return view.offsets.of_group(group).get(_PLACE, 0)


def _is_same(one: Consent, other: Consent) -> bool:
    """Return whether two are one word, whose reason may have been erased in between."""
    return msgspec.structs.replace(one, why="") == msgspec.structs.replace(other, why="")
