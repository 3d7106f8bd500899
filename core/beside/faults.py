"""Errors on their way from one process to another: what was raised there is raised here."""

import msgspec

from core.codec import encoder, typed
from core.errors import EngineUnavailable, InvalidRequest, NotFinite, Overloaded, Unavailable
from core.ids import PolicyRef
from core.records.handling import words_of


class FailedThere(Exception):
    """The other process failed at it; its log says how."""


class _Invalid(msgspec.Struct, tag="invalid"):
    message: str
    param: str | None
    code: str


class _NotFinite(msgspec.Struct, tag="not_finite"):
    message: str
    version: PolicyRef


class _Overloaded(msgspec.Struct, tag="overloaded"):
    message: str
    retry_after_s: int


class _Away(msgspec.Struct, tag="away"):
    message: str


class _Failed(msgspec.Struct, tag="failed"):
    message: str


_Fault = _Invalid | _NotFinite | _Overloaded | _Away | _Failed
_encode = encoder().encode
_faults: msgspec.msgpack.Decoder[_Fault] = msgspec.msgpack.Decoder(_Fault, dec_hook=typed)


def packed(error: BaseException) -> bytes:
    """Return an error as a message has it."""
    return _encode(_fault(error))


def _fault(error: BaseException) -> _Fault:
    match error:
        case InvalidRequest():
            return _Invalid(error.message, error.param, error.code)
        case NotFinite():
            return _NotFinite(str(error), error.version)
        case Overloaded():
            return _Overloaded(str(error), int(error.headers["retry-after"]))
        case Unavailable():
            return _Away(str(error))
        case _:
            return _Failed(words_of(error))


def unpacked(body: bytes | msgspec.Raw) -> Exception:
    """Return the error that a message has. Raises ValueError for a body that is none."""
    fault = _faults.decode(body)
    match fault:
        case _Invalid():
            return InvalidRequest(fault.message, param=fault.param, code=fault.code)
        case _NotFinite():
            return _again(fault)
        case _Overloaded():
            return Overloaded(fault.message, fault.retry_after_s)
        case _Away():
            return EngineUnavailable(fault.message)
        case _Failed():
            return FailedThere(f"the service's first process failed at it: {fault.message}")


def _again(fault: _NotFinite) -> NotFinite:
    error = NotFinite(fault.version)
    error.args = (fault.message,)
    return error
