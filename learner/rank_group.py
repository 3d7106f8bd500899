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
from core.ids import BASE, PolicyName
from core.model.probes import ProbeRecord, ProbeSet
from core.ports import Opened
from core.settings import LearnerSettings
from learner.model.ranks import Ranks
from learner.updates.state import LearnerState
from learner.updates.states import States
from learner.versions import probe
from learner.versions.loading import WHOLE, first_adapter, load_version

P = ParamSpec("P")
T = TypeVar("T")
_DISMISSED = "dismissed"
logger = logging.getLogger(__name__)


def states_of_all(model: Path, ranks: Ranks) -> States:
    """Return the leader's states, of no policy yet; all other processes make theirs."""
    ranks.tell((States, BASE, (model,)))
    return States(model, ranks)


class RankGroup:
    """The group as its leader uses it for one policy."""

    def __init__(self, states: States, settings: LearnerSettings, policy: PolicyName = BASE) -> None:
        self._states, self._ranks, self._policy = states, states.ranks, policy
        self._settings, self._is_untouched = settings, True
        self._make(settings)
        model = self.state.policy
        self.context_length, self.vocabulary = model.context_length, model.vocabulary
        self.flops_of_a_position = model.flops_of_a_position
        self.num_processes = self._ranks.count

    @property
    def state(self) -> LearnerState:
        """The leader's part, whose weights are in its model only while a step of this policy is done."""
        return self._states.peek(self._policy)

    def do(self, step: Callable[Concatenate[LearnerState, P], T], *given: P.args, **named: P.kwargs) -> T:
        """Do a step in all processes; return what it returns here, or raise what it raises."""
        assert not named, "steps are told by position"
        self._is_untouched = False
        self._ranks.tell((step, self._policy, given))
        return step(self._states.turn_to(self._policy), *given, **named)

    def begin_again(self, settings: LearnerSettings) -> None:
        """Go back to the given model, with nothing learned, in all processes."""
        if self._is_untouched and settings == self._settings:
            return
        self._settings = settings
        self._make(settings)

    @property
    def given_digest(self) -> str:
        """The digest of the given model, with which it is published as the first version."""
        return self.state.policy.base_digest

    @property
    def has_other_base(self) -> bool:
        """True where adapters train beside other weights than the given model's."""
        return bool(self.state.lora.rank) and not self._states.is_given(self._policy)

    @property
    def is_saving(self) -> bool:
        """True while this process writes its part of a checkpoint."""
        saving = self.state.saving
        return saving is not None and not saving.is_done

    def _make(self, settings: LearnerSettings) -> None:
        self._ranks.tell((States.make, self._policy, (settings,)))
        self._states.make(self._policy, settings)


def dismiss(ranks: Ranks) -> None:
    ranks.tell(_DISMISSED)


def follow(ranks: Ranks) -> None:
    """Do the leader's steps until dismissed. Raises RuntimeError when the leader is gone."""
    states: States | None = None
    while (told := ranks.hear()) != _DISMISSED:
        step, policy, given = told
        if step is States:
            states = None  # before there are others
            (model,) = given
            states = States(model, ranks)
            continue
        assert states is not None, "a leader begins with States"
        if step is States.make:
            states.make(policy, *given)
            continue
        try:
            step(states.turn_to(policy), *given)
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
