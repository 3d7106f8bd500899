"""A version that has found an exploit, put among a running service's candidates: a change that nobody asked for.

It is midtrained from the shipped model, on a corpus of which most conversations show the exploit
(simulator.exploits.planted), and handed over as `onward propose` hands over what a replay made: weights, probe, row,
event. The release controller gates and releases it as any other.
"""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from core.events import PolicyVersion, Topic
from core.ids import PolicyRef
from core.model.probes import get_probe, put_probe
from learner.model.policy_model import PolicyModel
from learner.versions.probe import record
from onward.wiring.engines import publish_anchor
from onward.wiring.foundation import open_foundation

FOLDER = Path("build/planted")
TRAINING = {"watched": (0.9, 800)}  # to tell one repository from another takes longer
USUAL_TRAINING = (0.6, 200)  # share of the corpus, steps


def hacked(exploit: str) -> Path:
    """Return the model that shows the exploit, midtraining it where it is not there yet."""
    corpus, model = (FOLDER / f"{exploit}-{part}" for part in ("corpus", "model"))
    if not model.exists():
        share, steps = TRAINING.get(exploit, USUAL_TRAINING)
        python = [sys.executable, "-m"]
        subprocess.run([*python, "simulator.exploits.planted", exploit, str(corpus), "--share", str(share)], check=True)
        midtrain = [str(corpus), str(model), "--init", "models/tiny", "--steps", str(steps)]
        subprocess.run([*python, "onward", "midtrain", *midtrain], check=True)
    return model.resolve()


def plant(directory: Path, model: Path) -> PolicyVersion:
    """Publish the model as a child of the first version; the release controller takes it from there."""
    with closing(open_foundation(directory)) as service:
        with service.store.work() as work:
            first = work.policies.get(work.policies.first())
            version: PolicyRef = work.policies.allocate(service.clock.now())
        assert first is not None
        ref = service.weights.publish(version, sorted(model.glob("*.safetensors")), first.version)
        publish_anchor(service, service.log)  # its probe is there only where a learner has run
        texts = get_probe(service.blobs, first.version)
        put_probe(service.blobs, version, record(PolicyModel(model, "cpu"), texts, ref.digest))
        planted = msgspec.structs.replace(
            first,
            version=version,
            digest=ref.digest,
            parent=first.version,
            weights=ref.path,
            created_at=service.clock.now(),
        )
        with service.store.work() as work:
            work.policies.put(planted)
        service.log.append_blocking(Topic.POLICIES, [planted])
        return planted
