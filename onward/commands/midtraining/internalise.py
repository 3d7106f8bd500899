"""`onward internalise`. Imports what it needs when it runs, as `onward.cli` does."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onward.commands.options import From, Set, To, overrides_of


def internalise(
    directory: Annotated[Path, Parameter(help="The service's directory that the sessions come from.")],
    output: Path,
    *,
    init: Annotated[Path, Parameter(help="The model that answered, in Hugging Face format.")],
    instructions: Annotated[str, Parameter(help="What stands in their place; nothing, if it is not given.")] = "",
    steps: int = 200,
    seed: int = 0,
    row_tokens: Annotated[int, Parameter(help="Tokens in a row, into which sessions are packed.")] = 1024,
    rows: Annotated[int, Parameter(help="Rows in a step.")] = 4,
    learning_rate: float = 2e-5,
    from_: From = None,
    to: To = None,
    min_reward: Annotated[float, Parameter(help="The least reward of turns that are learned from.")] = 0.5,
    set_: Set = None,
) -> None:
    """Teach a model to answer under short instructions, or none, as it did under the long ones of logged sessions.

    It prints the digest of the weights in OUTPUT; report.json says which turns were used."""
    from learner.midtraining.run import MidtrainOptions, midtrain
    from onward.replays.session_corpus import Choice, forget, gather

    choice = Choice(directory, from_, to, min_reward, instructions)
    sessions = gather(choice, init, row_tokens, output, overrides_of(set_), again=False)
    options = MidtrainOptions(
        steps=steps, seed=seed, row_tokens=row_tokens, rows=rows, learning_rate=learning_rate, save_every=steps
    )
    try:
        print(midtrain(sessions.file, output, init, options, figures=sessions.figures))
    finally:
        forget(output)
