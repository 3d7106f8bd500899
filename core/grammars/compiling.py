"""What grammars cost off the event loop, on threads of their own: who reads the store waits for no stranger's schema.

One that passed its trial may take a second to compile, and each mask some milliseconds, and anybody may ask for dozens
of such at once."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from core.events import Grammar
from core.grammars.library import Grammars
from core.grammars.masks import Masks

T = TypeVar("T")
_compilers: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="compile")
_followers: Final = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="follow")


async def masks_of(
    grammars: Grammars, grammar: Grammar, stop_token_ids: tuple[int, ...], scope: str | None = None
) -> Masks:
    """Return the masks of an answer, as `Masks` makes them; one that has been compiled waits for no other."""
    if grammars.has_compiled(grammar, stop_token_ids, scope):
        return await asyncio.to_thread(Masks, grammars, grammar, stop_token_ids, scope)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_compilers, Masks, grammars, grammar, stop_token_ids, scope)


async def compile_for(
    grammars: Grammars, grammar: Grammar, stop_token_ids: tuple[int, ...], scope: str | None = None
) -> None:
    """Compile a grammar for a scope's answers to come. Raises InvalidRequest as `Grammars.matcher` does."""
    if not grammars.has_compiled(grammar, stop_token_ids, scope):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_compilers, grammars.matcher, grammar, stop_token_ids, scope)


async def on_a_follower(work: Callable[[], T]) -> T:
    """Do what makes masks of an answer's tokens, which waits for nothing that is compiled."""
    return await asyncio.get_running_loop().run_in_executor(_followers, work)
