"""The grammar of a request's answer, made and compiled off the event loop, within a time."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.library import TOO_COMPLEX
from core.grammars.wanted import WantedAnswer
from core.ports import Renderer

_LONGEST_S: Final = 20.0  # what is bounded takes less by far, but may wait for others, or for the tokenizer
_compilers: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="grammars")
"""Apart from the threads that others use: whoever sends many hard schemas waits for their own."""


async def grammar_of(renderer: Renderer, wanted: WantedAnswer, prompt_token_ids: Sequence[int]) -> Grammar:
    """Return the grammar. Raises InvalidRequest naming the field at fault."""
    made = asyncio.get_running_loop().run_in_executor(_compilers, renderer.grammar, wanted, prompt_token_ids)
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await made
    except TimeoutError as error:
        raise InvalidRequest(
            f"{wanted.field}: its grammar was not ready within {_LONGEST_S:.0f} s", param=wanted.field, code=TOO_COMPLEX
        ) from error
