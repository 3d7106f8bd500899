"""What can go wrong around an agent's work, told apart by whose fault it is.

Only a failure of the agent itself may become a reward."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OF_THIS_MACHINE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What an OSError says that this machine itself has met, and nothing in a sandbox."""


class EnvironmentFault(Exception):
    """Root of the tree."""


class TaskError(EnvironmentFault):
    """A task's folder is not well formed; the message names the file and the field."""


class InfrastructureFailure(EnvironmentFault):
    """The sandbox, the disk, the service or the machine failed: no fault of the agent's, and no reward.

    `part` names what failed: sandbox, image, disk, service, harness, verifier, machine."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(f"{part}: {message}")
        self.part = part


class OutOfTime(EnvironmentFault):
    """The harness used up the time that the task gives an agent."""


class NoVerdict(InfrastructureFailure):
    """The tests said nothing of the work that they were to judge.

    Work can bring that about, too: whose fault it is, is told by what the same tests say of other work."""

    def __init__(self, message: str) -> None:
        super().__init__("verifier", message)


class NothingTold(NoVerdict):
    """The environment of another library, which judges its work itself, did not come to do so."""


class VerifierOutOfTime(NoVerdict):
    """The tests did not end in their time."""


@contextmanager
def no_verdict_where(what: str) -> Iterator[None]:
    """Raise NoVerdict for what is met at a file of a sandbox; what this machine itself meets goes on as it is."""
    try:
        yield
    except OSError as error:
        if error.errno in OF_THIS_MACHINE:
            raise
        raise NoVerdict(f"{what}: {error}") from error
