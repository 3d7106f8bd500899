"""Addresses of services, in which passwords may be spelled as they are."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from core.secrets import is_ambiguous, with_quoted_password


def _address(url: str) -> str:
    if is_ambiguous(url):
        message = (
            "its password cannot be told from options; in a password, write `?` as %3F, and before options write `/`"
        )
        raise ValueError(message)
    quoted = with_quoted_password(url)
    try:
        if "://" in quoted and "," not in quoted:  # libpq takes several hosts, each with its port
            urlsplit(quoted).port  # noqa: B018  # which raises for what is no port, and shows what may be a password's
    except ValueError:
        message = "its host or port cannot be read; in a password, write `?` as %3F and a space as %20"
        raise ValueError(message) from None
    return quoted


Address = Annotated[str, AfterValidator(_address)]
"""A URL. What its password contains and a URL may not is percent-encoded."""
