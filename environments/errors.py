"""What can go wrong around an agent's work, told apart by whose fault it is."""


class EnvironmentFault(Exception):
    """Root of the tree."""


class InfrastructureFailure(EnvironmentFault):
    """The sandbox, the disk or the machine failed: no fault of the agent's.

    `part` names what failed: sandbox, image, disk."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(f"{part}: {message}")
        self.part = part
