"""What may not be stored any more is erased: the order that follows a word of consent."""

import asyncio
import logging
from datetime import timedelta

from api.access.context import Context
from api.access.trail import Note
from api.operator.erasures.forgetting import forget
from api.turns.lookup import read, read_all
from core.operations.consents import Consent
from core.operations.erasures import Erasure
from core.ports import Store
from core.records.erasure_orders import give, redact_rest

logger = logging.getLogger(__name__)


async def erase(context: Context, word: Consent, note: Note) -> Erasure | None:
    """Order that what is stored of the word's subject be erased. None: nothing is, and no order for it is in force.

    Raises StoreUnavailable where the store cannot say yet whether it has all that was said."""
    services = context.services
    now = min(word.at, services.clock.now())  # a word is later than its clock where another cluster's is ahead
    order = Erasure(
        erasure_id=0,
        namespace=word.namespace,
        kind=word.kind,
        subject=word.subject,
        why=f"consent of a {word.kind}",
        by=word.by,
        ordered_at=now,
        deadline_at=now + timedelta(days=services.erasure_days),
    )
    await read_all(services, lambda _: None)  # what is on its way to the store, too
    asked = word.namespace, word.kind, word.subject, now
    if not await read(services, lambda view: view.words.are_here(*asked)):
        return await read(services, lambda view: view.erasures.in_force_for(order))
    given = await asyncio.to_thread(_give, services.store, order, note)
    await forget(context, given)
    logger.warning("erasure %d of a %s, by its consent", given.erasure_id, word.kind)
    return given


def _give(store: Store, order: Erasure, note: Note) -> Erasure:
    with store.work() as work:
        given, rest = give(work, order)
        note.write(work, erasure_id=given.erasure_id)
    redact_rest(store, given, rest)
    return given
