"""Orders to erase an organisation: one for each of its namespaces, and one for its policy."""

from datetime import timedelta
from typing import Any

import msgspec

from api.access.identity import Identity
from api.access.services import ApiServices
from api.access.trail import Note
from api.operator.erasures.preview import preview
from core.errors import Conflict, NotFound
from core.ids import BASE, Namespace, PolicyName
from core.operations.erasures import Erasure, Foreseen
from core.records.erasure_orders import give, part_of, redact_rest
from core.settings import PolicySettings
from core.store.work import View

_NAMED = "policy"


def foresee_organisation(services: ApiServices, view: View, named: str) -> dict[str, Any]:
    """Return what would go with an organisation, and what others' policies would learn again. It changes nothing."""
    own = organisation_of(services, view, named)
    asked = services.blobs, services.clock, services.cluster
    policy = PolicyName(named)
    parts = [preview(view, *asked, Namespace(each), "namespace", each, policy) for each in own.namespaces]
    versions = len(view.policies.versions(policy))
    said = [f"In namespace {part['namespace']}: {sentence}" for part in parts for sentence in part["says"]]
    return {
        "object": "erasure.preview",
        "kind": "organisation",
        "subject": named,
        "namespace": own.namespaces[0],
        "namespaces": [*own.namespaces],
        "versions": versions,
        **{of: sum(part[of] for part in parts) for of in ("sessions", "turns")},
        **{of: max(part[of] for part in parts) for of in ("updates", "seconds")},  # they are obeyed in one go
        "says": [
            f"The policy {named} would be erased with all its {versions} versions, and nobody would be answered in its"
            f" namespaces ({', '.join(own.namespaces)}) any more. None of these names is given again.",
            *said,
            f"At its end it waits until [policies.{named}] is out of the settings and the service was started again.",
        ],
    }


def organisation_of(services: ApiServices, view: View, named: str) -> PolicySettings:
    """Return an organisation. Raises NotFound, or Conflict for one whose namespaces nobody knows any more."""
    own = services.policies.get(named)
    if own is not None:
        return own
    if PolicyName(named) in view.policies.names() and named != BASE:
        raise Conflict(
            f"[policies.{named}] is not in the settings, so nobody knows its namespaces: put it there, and order again",
            param=_NAMED,
            code="unknown_namespaces",
        )
    raise NotFound(f"no organisation {named}", param=_NAMED, code="unknown_organisation")


def give_organisation(services: ApiServices, identity: Identity, named: str, why: str, note: Note) -> list[Erasure]:
    """Store an organisation's order, or find the one there is; return it, and those for its namespaces.

    Raises NotFound and Conflict."""
    with services.store.look() as view:
        known = [each for each in view.erasures.of_organisations() if each.subject == named]
        foreseen = None if known else foresee_organisation(services, view, named)
    if foreseen is None:
        return known
    now = services.clock.now()
    with services.store.work() as work:
        own = organisation_of(services, work, named)
        order = Erasure(
            erasure_id=0,
            namespace=Namespace(own.namespaces[0]),
            kind="organisation",
            subject=named,
            why=why,
            by=identity.by,
            ordered_at=now,
            deadline_at=now + timedelta(days=services.erasure_days),
            foreseen=Foreseen(foreseen["updates"], foreseen["seconds"]),
            namespaces=tuple(map(Namespace, own.namespaces)),
        )
        parts = [give(work, part_of(order, namespace, now)) for namespace in order.namespaces]
        numbers = tuple(part.erasure_id for part, _ in parts)
        given = work.erasures.get(work.erasures.give(msgspec.structs.replace(order, parts=numbers)))
        assert given is not None, "it was given just now"
        note.write(work, order.namespace, erasure_id=given.erasure_id)
    for part, rest in parts:
        redact_rest(services.store, part, rest)
    return [given, *(part for part, _ in parts)]
