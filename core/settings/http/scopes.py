"""What a key, or a person who signed in, may do."""

from typing import Literal

Scope = Literal["chat", "feedback", "read", "operate", "audit", "admin"]
