"""Compiling off the event loop, on threads of its own: whoever reads the store waits for no stranger's schema.

A grammar that passed its trial may take a second to compile, and anybody may ask for dozens of such at once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from core.events import Grammar
from core.grammars.library import Grammars
from core.grammars.masks import Masks

_compilers: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="compile")


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
