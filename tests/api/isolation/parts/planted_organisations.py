"""Four organisations, two with policies of their own, that have one of everything, in words of their own."""

import uuid
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import msgspec
from api_harness import Service, wait_for
from made_drafts import draft
from made_events import completion, opening, outcome, policy, reward_of
from scripted_policy import says

from core.clock import SystemClock
from core.events import Release, ToolCall, VersionSpan
from core.ids import BASE, Namespace, PolicyName, PolicyRef, SessionId, UserHash, base_ref
from core.operations.costs import Payer, Used
from core.operations.erasures import Erasure
from core.operations.exclusions import Selection
from core.operations.fleet import Experiment
from core.operations.keys import KeyWish, make_key
from core.operations.quotas import Account, Use, month_of
from core.settings import PolicySettings, QuotaSettings
from core.settings.policies import owner_of
from serving.evals.mining.folder import SuiteFolder

ORGANISATIONS = ("acme", "bolt", "cask", "dune")
POLICIES = {name: PolicySettings(namespaces=(name,)) for name in ("acme", "bolt")}
"""The others are the base policy's, which is everybody's."""
QUOTAS = QuotaSettings.model_validate({"namespaces": {name: {"tokens_per_month": 9_000_000} for name in ORGANISATIONS}})
SCOPES = ("chat", "feedback", "read", "operate", "audit")
"""All below admin."""
FIRST = base_ref(1)
_COUNTS = {"acme": 35711, "bolt": 46829, "cask": 57943, "dune": 68059}
_NOBODY = uuid.UUID("0192f000-0000-7000-8000-000000000000")


@dataclass(frozen=True)
class Names:
    """What a request may name of an organisation, or of nobody where nothing has these names."""

    namespace: str
    policy: str
    version: str
    user: str
    user_hash: str
    session_id: str
    inference_id: str
    stored_id: str  # of a turn that was put into the store
    stored_session: str
    call_id: str
    feedback_id: str
    alarm_id: str
    draft_id: str
    exclusion_id: str
    erasure_id: str
    key_id: str
    key_name: str
    workload: str
    word: str  # in all its texts, and in no name
    count: str  # of its turns, as its quota and its bill have it

    def texts(self) -> dict[str, str]:
        """Return the names that are nobody else's, by what they name; numbers and the base policy's are."""
        found = {each.name: str(getattr(self, each.name)) for each in fields(self)}
        shared = {"exclusion_id", "erasure_id", *(("policy", "version") if self.policy == BASE else ())}
        return {name: text for name, text in found.items() if name not in shared}


def key(organisation: str, *scopes: str) -> str:
    return f"key-{organisation}-{'-'.join(scopes or SCOPES)}"


def keys() -> list[dict[str, Any]]:
    """Return for each organisation a key of each scope, and one of all of them."""
    return [
        {"key": key(name, *scopes), "namespace": name, "name": f"{name}-maker", "scopes": list(scopes or SCOPES)}
        for name in ORGANISATIONS
        for scopes in ((), *((each,) for each in SCOPES))
    ]


def nobody(of: Names) -> Names:
    """Return names of the same form that nothing has."""
    made = {name: of.namespace[::-1] + text[len(of.namespace) :] for name, text in of.texts().items()}
    numbers = {"inference_id": 1, "stored_id": 2}
    own = sum(map(ord, of.namespace)) << 4
    made |= {name: str(uuid.UUID(int=_NOBODY.int + own + number)) for name, number in numbers.items()}
    policy_name = BASE if of.policy == BASE else made["policy"]
    version = of.version if of.policy == BASE else f"{policy_name}@2"
    made |= {"policy": policy_name, "version": version, "user_hash": of.user_hash[::-1]}
    return replace(of, **made, exclusion_id="987654", erasure_id="987654")


def plant(service: Service, drafts: SuiteFolder) -> dict[str, Names]:
    """Give each organisation one of everything, and return what is whose."""
    now = SystemClock().now()
    with service.store.work() as work:
        for _ in range(2):
            work.policies.put(policy(work.policies.allocate(now)))
        work.releases.put(Release(version=FIRST, cluster="local", state="live", why="the first", by="start", at=now))
    made = {name: _one(service, name) for name in ORGANISATIONS}
    drafts.add([_draft(each) for each in made.values()])
    wait_for(lambda: all(_is_counted(service, of) for of in made.values()), "what was asked in the quotas")
    return made


def _is_counted(service: Service, of: Names) -> bool:
    """Return whether its one request is in its quota, which takes a second."""
    with service.store.look() as view:
        (use,) = view.spending.of_namespace(month_of(SystemClock().now()), of.namespace, 1).values()
    return use.requests > int(of.count)


def _draft(of: Names) -> Any:
    return msgspec.structs.replace(draft(of.draft_id, of.namespace), why=f"{of.word} was accepted")


def _one(service: Service, name: str) -> Names:
    word, headers = f"walrus-of-{name}", {"authorization": f"Bearer {key(name)}"}
    user, session = f"{name}-user", f"{name}-session"
    service.policy.scripts.append(says(f"{word} answers"))
    asked = service.chat(f"{word} asks", headers=headers, user=user, session_id=session, metadata={"about": word})
    inference_id = asked.headers["x-onward-inference-id"]
    turn = service.turn(inference_id)
    feedback_id = f"{name}-feedback"
    for metric, value, own in (("accepted", True, feedback_id), ("comment", f"{word} comments", f"{name}-comment")):
        told = {"inference_id": inference_id, "metric_name": metric, "value": value, "feedback_id": own, "user": user}
        assert service.post("/v1/feedback", told, **headers).status_code == 200
    consent = {"learn": False, "why": f"{word} said so"}
    assert service.http.put(f"/v1/users/{name}-shy/consent", json=consent, headers=headers).status_code == 200
    assert turn.user_id is not None
    of = Names(
        namespace=name,
        policy=owner_of(POLICIES, name),
        version="2",
        user=user,
        user_hash=turn.user_id,
        session_id=session,
        inference_id=inference_id,
        stored_id="",
        stored_session=f"{name}-stored",
        call_id=f"{name}-call",
        feedback_id=feedback_id,
        alarm_id=f"{name}-alarm",
        draft_id=f"{name}-draft",
        exclusion_id="",
        erasure_id="",
        key_id="",
        key_name=f"{name}-maker",
        workload=f"{name}-work",
        word=word,
        count=str(_COUNTS[name]),
    )
    return _stored(service, of)


def _stored(service: Service, of: Names) -> Names:
    """Put into the store what no request makes."""
    now, namespace, own = SystemClock().now(), Namespace(of.namespace), PolicyName(of.policy)
    call = ToolCall(id=of.call_id, name="run", arguments=f'{{"what": "{of.word}"}}', index=0)
    said = completion(
        SessionId(of.stored_session), namespace=namespace, workload=of.workload, user_id=UserHash(of.user_hash),
        key_id=of.key_name, text=f"{of.word} was stored", tool_calls=(call,), received_at=now - timedelta(hours=1),
        messages=({"role": "user", "content": f"{of.word} asked"},), policy=of.policy,
        policy_versions=(VersionSpan(start=0, end=2, version=PolicyRef(own, FIRST.version)),),
    )  # fmt: skip
    wish = KeyWish(namespace=namespace, name=f"{of.namespace}-kept")
    _, kept = make_key(wish, of.key_name, now)
    erasure = Erasure(
        erasure_id=0, namespace=namespace, kind="session", subject=f"{of.namespace}-gone", why=f"{of.word} wants it",
        by=of.key_name, ordered_at=now, deadline_at=now + timedelta(days=30),
    )  # fmt: skip
    with service.store.work() as work:
        if own != BASE:
            _versions(work, of, now)
        work.turns.put([said])
        work.outcomes.put([outcome(said, name="comment", value=f"{of.word} judges")])
        work.alarms.open(opening(of.alarm_id, namespace=namespace, meaning=f"{of.word} is afraid", opened_at=now))
        selection = Selection(namespace=namespace, workloads=(f"{of.namespace}-left",))
        exclusion_id = work.exclusions.give(selection, f"{of.word} erred", of.key_name, now)
        erasure_id = work.erasures.give(erasure)
        work.keys.add(kept)
        work.spending.add(month_of(now), {Account("namespace", of.namespace, of.namespace): Use(int(of.count), 9000)})
        work.costs.add({Payer(month_of(now), namespace, own): Used(turns=int(of.count))})
        work.exports.put(f"{of.word}.jsonl", "raw", [(namespace, SessionId(of.session_id))], now)
        work.rewards.put([(0, reward_of(said, 0.5, now, why=f"{of.word} is worth it"))])
    version = "2" if own == BASE else f"{own}@2"
    numbers = {"exclusion_id": str(exclusion_id), "erasure_id": str(erasure_id), "key_id": kept.key_id}
    return replace(of, **numbers, stored_id=said.inference_id, version=version)


def _versions(work: Any, of: Names, now: Any) -> None:
    """Give it a version that serves, a canary, and an order about it."""
    own = PolicyName(of.policy)
    first, second = (work.policies.allocate(now, own) for _ in range(2))
    for version, state in ((first, "live"), (second, "canary")):
        work.policies.put(policy(version, policy=own, metrics={"loss": 35.71}))
        why = f"{of.word} served well"
        work.releases.put(Release(version=version, cluster="local", state=state, why=why, by=of.key_name, at=now))
    running: Any = {"canary": second, "control": first, "share": 0.05, "salt": of.word, "started_at": now}
    work.experiments.put(Experiment(experiment_id=f"{of.word}-tries", cluster="local", **running))
    work.orders.give("local", "hold", second, f"{of.word} waits", of.key_name, now)
