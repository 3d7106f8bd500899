"""Work on the weights that all processes of a learner do together.

The leader reads the log, decides what is to be done and writes the results; the others do every step with it, on their
shards. A step is a function of a module, called with the state first."""

import logging
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import torch

from core.errors import OnwardError
from core.model.probes import ProbeRecord, ProbeSet
from core.ports import Opened
from core.settings import LearnerSettings
from learner.model.ranks import Ranks
from learner.updates.state import LearnerState, make_state
from learner.versions import probe
from learner.versions.loading import WHOLE, first_adapter, load_version

P = ParamSpec("P")
T = TypeVar("T")
_DISMISSED = "dismissed"
logger = logging.getLogger(__name__)


class RankGroup:
    """The group as its leader uses it."""

    def __init__(self, model: Path, settings: LearnerSettings, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self._settings, self._is_untouched = settings, True
        self._state = self._made(settings)
        self.context_length = self._state.policy.context_length
        self.vocabulary = self._state.policy.vocabulary
        self.flops_of_a_position = self._state.policy.flops_of_a_position
        self.num_processes = ranks.count

    def do(self, step: Callable[Concatenate[LearnerState, P], T], *given: P.args, **named: P.kwargs) -> T:
        """Do a step in all processes; return what it returns here, or raise what it raises."""
        assert not named, "steps are told by position"
        self._is_untouched = False
        self._ranks.tell((step, given))
        return step(self._state, *given, **named)

    def begin_again(self, settings: LearnerSettings) -> None:
        """Go back to the given model, with nothing learned, in all processes."""
        if self._is_untouched and settings == self._settings:
            return
        del self._state  # before there is another
        self._settings, self._state = settings, self._made(settings)

    @property
    def given_digest(self) -> str:
        """The digest of the given model, with which it is published as the first version."""
        return self._state.policy.base_digest

    @property
    def has_other_base(self) -> bool:
        """True where adapters train beside other weights than the given model's."""
        return bool(self._state.lora.rank) and not self._state.policy.is_given

    @property
    def is_saving(self) -> bool:
        """True while this process writes its part of a checkpoint."""
        return self._state.saving is not None and not self._state.saving.is_done

    def _made(self, settings: LearnerSettings) -> LearnerState:
        self._ranks.tell((make_state, (self._model, settings)))
        return make_state(self._model, settings, self._ranks)


def dismiss(ranks: Ranks) -> None:
    ranks.tell(_DISMISSED)


def follow(ranks: Ranks) -> None:
    """Do the leader's steps until dismissed. Raises RuntimeError when the leader is gone."""
    state: LearnerState | None = None
    while (told := ranks.hear()) != _DISMISSED:
        step, given = told
        if step is make_state:
            state = None  # before there is another
            state = make_state(*given, ranks)
            continue
        try:
            step(state, *given)
        except OnwardError as error:  # the leader has it, too, and goes on or ends
            logger.warning("%s", error)


# ---------------------------------------------------------------------------------------------- steps


def adopt(state: LearnerState, opened: Opened, settings: LearnerSettings, memory: bytes | None = None) -> None:
    """Load a version's weights and, if any, its published memory, with a fresh optimizer.

    Raises WeightsError, and ConfigError for an adapter of another rank than trains here."""
    load_version(state.policy, opened, settings.lora)
    if opened.adapter is None and state.adapter is not None:
        state.policy.load_adapter(first_adapter(state.policy, settings.seed))
    state.forget(settings)
    if memory is None:
        return
    try:
        state.load_memory(torch.load(BytesIO(memory), weights_only=True))
    except (RuntimeError, pickle.UnpicklingError, KeyError, ValueError) as error:
        logger.warning("what its version had learned beside the weights is of other settings, and left out: %s", error)
        state.forget(settings)


def anchor_at(state: LearnerState, opened: Opened | None) -> None:
    """Load the anchor from a version; with none, the given model. Raises WeightsError.

    An adapter of the rank and alpha that train here is held in the policy's place, any other merged."""
    if opened is None:
        state.anchor.load_given()
        return
    own, adapter = state.lora, opened.adapter
    is_own = adapter is None or (adapter.rank, adapter.alpha) == (own.rank, own.alpha)
    load_version(state.anchor, opened, own if is_own else WHOLE)


def answers(state: LearnerState, texts: ProbeSet) -> ProbeRecord:
    """Return the policy's answers to a probe's texts."""
    return probe.record(state.policy, texts, weights_digest="")


def memory_file(state: LearnerState) -> bytes:
    """Return what the learner knows beside the weights, as it is published."""
    memory = BytesIO()
    torch.save(state.memory(), memory)
    return memory.getvalue()
