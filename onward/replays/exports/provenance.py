"""Where an export comes from: what stands beside its file."""

import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from core.ids import PolicyRef
from core.model.files import weight_files
from core.model.weights_digest import digest_of_shards
from core.secrets import redacted
from onward.replays.exports.past import Logged
from onward.wiring.foundation import Foundation

_CHECKOUT = Path(__file__).resolve().parents[3]


class Tally:
    """What all chosen turns have in common, and how many there are."""

    def __init__(self) -> None:
        self.turns = 0
        self._times: tuple[datetime, datetime] | None = None
        self._versions: tuple[PolicyRef, PolicyRef] | None = None
        self._tokenizers, self._specs = Counter[str](), Counter[str]()

    def add(self, session: Sequence[Logged]) -> None:
        self.turns += len(session)
        self._tokenizers.update(each.turn.tokenizer_digest for each in session)
        self._specs.update(each.reward.spec for each in session if each.reward is not None)
        times = [each.turn.received_at for each in session]
        self._times = min([*times, *(self._times or ())]), max([*times, *(self._times or ())])
        versions = [span.version for each in session for span in each.turn.policy_versions] + [*(self._versions or ())]
        if versions:
            self._versions = min(versions), max(versions)

    def told(self) -> dict[str, Any]:
        """Return it for a file in JSON."""
        return {
            "received_at": None if self._times is None else [time.isoformat() for time in self._times],
            "versions": None if self._versions is None else list(map(str, self._versions)),
            "tokenizers": dict(self._tokenizers),
            "reward_specs": dict(self._specs),
        }


def origin(source: Foundation, form: str, told: dict[str, str]) -> dict[str, Any]:
    """Return which program made the file, of which model, and how it was asked to."""
    return {
        "form": form,
        "command": redacted(shlex.join(["onward", *sys.argv[1:]])),
        "choice": told,
        "commit": _commit(),
        "model": source.settings.serving.model_name,
        "model_digest": _model_digest(source),
    }


def _model_digest(source: Foundation) -> str:
    """Return the digest of the first version, which the store knows once a service has run there."""
    with source.store.look() as view:
        versions = view.policies.versions()
        first = view.policies.get(versions[0]) if versions else None
    return digest_of_shards(weight_files(source.model)) if first is None else first.digest


def _commit() -> str | None:
    """Return the commit of the checkout that runs; None outside of one, as in an image."""
    try:
        asked = ["git", "-C", str(_CHECKOUT), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
