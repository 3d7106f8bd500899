"""What is replaced of the words of users before anything of them is stored."""

from typing import Literal

Redactable = Literal["secrets", "pii"]
