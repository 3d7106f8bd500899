"""What one organisation's traffic changes of another's weights: nothing, for each pair, by the digests of versions.

    python -m bench organisations_isolation

Each organisation's turns are scored by the shipped model and rewarded by a seed. Its policy learns from them once alone
and once beside each other organisation, whose turns come in between; then beside one whose losses are no numbers. One
learner, one base in memory, adapters of rank 2. A last run has one organisation flood the others."""

import random
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, combinations, pairwise, zip_longest
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForCausalLM

from bench.small_turns import small_reward, small_turn
from bench.table import Row, report
from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Completion, PolicyVersion, Reward, Topic, VersionSpan
from core.ids import InferenceId, Namespace, PolicyName, PolicyRef, Version
from core.model.probes import ProbeRecord
from core.settings import LearnerSettings
from core.settings.policies import PolicySettings, PolicySharingSettings
from core.stages.rounds import Rounds
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from learner.policies.roster import Roster
from learner.stage import Learner
from learner.versions.probe import probe_of_model
from onward.directory.layout import SHIPPED_MODEL
from serving.releases import ensure_anchor, ensure_first
from serving.weights.published import BlobWeights

NAMES = ("acme", "bolt", "cask", "dune", "echo")
BATCH, UPDATES, FLOOD = 4, 3, 12
_VALUES = (1.0, -0.5, 0.25, -1.0)
START = datetime(2026, 1, 1, tzinfo=UTC)
Pair = tuple[Completion, Reward]
_SETTINGS = {"lora": {"rank": 2}, "batch": {"turns": BATCH, "min_turns": BATCH}, "checkpoints": {"max_lead": 100}}


@cache
def _scored(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """Return (prompt, answer, log-probabilities) of tokens drawn by a seed."""
    ids = [random.Random(seed).randrange(3, 200) for _ in range(20)]
    with torch.inference_mode():
        logprobs = _model()(torch.tensor([ids])).logits[0].log_softmax(-1)
    return tuple(ids[:12]), tuple(ids[12:]), tuple(float(logprobs[place - 1, ids[place]]) for place in range(12, 20))


@cache
def _model() -> torch.nn.Module:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()  # type: ignore[no-any-return]


@cache
def _probe(model: Path) -> ProbeRecord:
    return probe_of_model(model, "cpu")


def turns_of(name: str, count: int, *, spoilt: bool = False) -> list[Pair]:
    """Return turns of an organisation; `spoilt` ones have a reward with which no loss is a number."""
    rng, found = random.Random(name), []
    values = [value for _ in range(0, count, BATCH) for value in rng.sample(_VALUES, BATCH)]
    for number, worth in enumerate(values):
        prompt, answer, logprobs = _scored(rng.randrange(1 << 30))
        at = START + timedelta(seconds=number)
        session = f"{name}-{number}"
        turn = small_turn(session, 0, workload="write", at=at, prompt=prompt, tokens=answer, logprobs=logprobs)
        spans = (VersionSpan(start=0, end=len(answer), version=PolicyRef(PolicyName(name), Version(1))),)
        digits = f"{NAMES.index(name):04x}{number:08x}"
        changes = {"inference_id": InferenceId(f"00000000-0000-7000-8000-{digits}"), "namespace": Namespace(name)}
        turn = msgspec.structs.replace(turn, **changes, policy=name, policy_versions=spans)
        value = 1e39 if spoilt else worth
        found.append((turn, small_reward(turn, value, "accepted", at + timedelta(seconds=2))))
    return found


def learned(*each: Sequence[Pair]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the digests of each policy's versions, and whose each version was, in the order of their publication."""
    names = [str(pairs[0][0].namespace) for pairs in each]
    pairs = [pair for pair in chain.from_iterable(zip_longest(*each)) if pair is not None]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        log, store, blobs = SqliteEventLog(root / "log.db", 1, 0.01), open_sqlite(root / "store.db"), FsspecBlobs(root)
        weights, clock = BlobWeights(blobs), ManualClock(START)
        try:
            ensure_anchor(store, log, weights, blobs, SHIPPED_MODEL, "tiny", "local", _probe, clock)
            for name in names:
                ensure_first(store, log, blobs, PolicyName(name), "local", clock)
            with store.work() as work:
                work.turns.put([turn for turn, _ in pairs])
            log.append_blocking(Topic.REWARDS, [reward for _, reward in pairs])
            clock.advance_to(max(reward.decided_at for _, reward in pairs))
            settings = LearnerSettings.model_validate(_SETTINGS)
            policies = {name: PolicySettings(namespaces=(name,)) for name in names}
            roster = Roster(policies, PolicySharingSettings(base_learns_from="none"))
            given = log, store, weights, blobs, settings, SHIPPED_MODEL, root / "learner", clock
            learner = Learner(*given, roster=roster)
            rounds = Rounds("learner", learner)
            while rounds.step(0.0):
                pass
            learner.close()
            with store.look() as view:
                made = {name: view.policies.newest(100, PolicyName(name))[::-1] for name in names}
            published = log.reader([Topic.POLICIES])
            events = [record.event for record in published.poll(1000, 0.0)]
            published.close()
        finally:
            log.close()
            store.close()
    order = [e.version.policy for e in events if isinstance(e, PolicyVersion) and e.version.version > 1]
    return {name: [one.digest for one, _ in each] for name, each in made.items()}, [str(name) for name in order]


def longest_wait(order: Sequence[str], name: str) -> int:
    """Return the most updates of others before one of the policy's, which always had one due."""
    places = [-1, *(place for place, each in enumerate(order) if each == name)]
    return max(after - before - 1 for before, after in pairwise(places))


def main() -> None:
    turns = {name: turns_of(name, BATCH * UPDATES) for name in NAMES}
    alone = {name: learned(turns[name])[0][name] for name in NAMES}
    assert len({digest for each in alone.values() for digest in each}) == 1 + len(NAMES) * UPDATES
    changed = 0
    for one, other in combinations(NAMES, 2):
        found, _ = learned(turns[one], turns[other])
        changed += sum(found[name] != alone[name] for name in (one, other))
    of_pairs = f"of {len(NAMES) * (len(NAMES) - 1)} ordered pairs"
    bad, *others = NAMES
    found, _ = learned(turns_of(bad, BATCH * UPDATES, spoilt=True), *(turns[name] for name in others))
    assert len(found[bad]) == 1, "nothing was learned from it"
    hurt = sum(found[name] != alone[name] for name in others)
    flood, order = learned(turns_of(bad, BATCH * FLOOD), *(turns[name] for name in others))
    slowed = sum(flood[name] != alone[name] for name in others)
    waited = max(longest_wait(order, name) for name in others)
    fair = len(NAMES) - 1
    report(
        "organisations_isolation",
        [
            Row.at_most("weights of B that differ with A's traffic", changed, of_pairs, "none", changed, 0),
            Row.at_most("the same where A's losses are no numbers", hurt, f"of {len(others)}", "none", hurt, 0),
            Row.at_most("the same where A has four times the turns", slowed, f"of {len(others)}", "none", slowed, 0),
            Row.at_most(
                "most updates of others before one of B's, in that flood",
                waited,
                "updates",
                "a fair turn's",
                waited / fair,
                1,
            ),
        ],
    )


if __name__ == "__main__":
    main()
