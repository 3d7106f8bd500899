"""Errors that callers may want to tell apart."""


class OnwardError(Exception):
    """Any error of this package."""


class QueueFull(OnwardError):
    """The queue holds as much as it may: the feedback was not taken, and nothing that is queued was dropped."""


class Unreachable(OnwardError):
    """The service did not answer, or could not; asking again later may help."""


class RequestRefused(OnwardError):
    """The service understood the request and refused it: sending it again will not help.

    `param` is the field at fault and `code` a word for the reason, where the service gives them."""

    def __init__(self, status: int, message: str, param: str | None, code: str | None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.code = code
