"""`onward midtrain`. Imports what it needs when it runs, as `onward.cli` does."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from core.errors import ConfigError
from onward.commands.options import From, Set, To, overrides_of

Corpus = Annotated[Path, Parameter(help="A directory of .jsonl, .jsonl.zst and .parquet files, or one of these.")]
KeepOut = Annotated[
    list[Path] | None,
    Parameter(negative="", help="A suite of eval cases: what resembles a solution is left out; may be repeated."),
]


def midtrain(
    corpus: Corpus,
    output: Annotated[Path, Parameter(help="The directory for the model, the report and what is saved between steps.")],
    *,
    init: Annotated[Path, Parameter(help="The model, in Hugging Face format; missing weights are drawn by the seed.")],
    also: Annotated[list[Path] | None, Parameter(help="Another corpus, read after it; may be repeated.")] = None,
    steps: Annotated[int, Parameter(help="Steps of the optimizer, each over all its rows.")] = 2000,
    seed: Annotated[int, Parameter(help="The order of documents, and weights that are missing, follow from it.")] = 0,
    row_tokens: Annotated[int, Parameter(help="Tokens in a row, into which documents are packed.")] = 256,
    rows: Annotated[int, Parameter(help="Rows in a step.")] = 8,
    learning_rate: Annotated[float, Parameter(help="The highest learning rate.")] = 3e-3,
    long: Annotated[
        Literal["refuse", "split"], Parameter(help="What to do with a document longer than a row.")
    ] = "refuse",
    buffer_tokens: Annotated[int, Parameter(help="Tokens held in memory and shuffled together.")] = 1 << 24,
    save_every: Annotated[int, Parameter(help="Steps between saves.")] = 200,
    resume: Annotated[bool, Parameter(help="Go on from the state saved in OUTPUT.")] = False,
    mix: Annotated[float, Parameter(help="Share of tokens from replayed sessions, against forgetting.")] = 0.0,
    sessions: Annotated[Path | None, Parameter(help="The service's directory that the sessions come from.")] = None,
    from_: From = None,
    to: To = None,
    min_reward: Annotated[float, Parameter(help="The least reward of turns that are mixed in.")] = 0.5,
    keep_out: KeepOut = None,
    set_: Set = None,
) -> None:
    """Continue pretraining a model on documents (`messages` or `text`) into OUTPUT, with report.json.

    Documents and turns that resemble a solution of an eval suite are left out: those of `--keep-out`, and with
    `--sessions` those that the directory's own learner keeps out. It prints the weights' digest."""
    from learner.midtraining.checkpoint import CHECKPOINT
    from learner.midtraining.run import MidtrainOptions
    from learner.midtraining.run import midtrain as train
    from onward.replays.provenance import provenance_of_model
    from onward.replays.session_corpus import SessionChoice, forget, gather, suites_of

    options = MidtrainOptions(
        steps=steps,
        seed=seed,
        row_tokens=row_tokens,
        rows=rows,
        learning_rate=learning_rate,
        save_every=save_every,
        buffer_tokens=buffer_tokens,
        long=long,
        mix=mix,
    )
    if (mix > 0) != (sessions is not None):
        raise ConfigError("--mix SHARE and --sessions DIR go together")
    origin = provenance_of_model(init, {"midtrain": seed})
    run = partial(train, corpus, output, init, options, also=also or (), resume=resume, provenance=origin)
    if sessions is None:
        if from_ is not None or to is not None or set_ is not None:
            raise ConfigError("--from, --to and --set are of --sessions DIR, which is not given")
        print(run(suites_of(keep_out or ())))
        return
    choice, overrides = SessionChoice(sessions, from_, to, min_reward), overrides_of(set_)
    again = resume and (output / CHECKPOINT).exists()
    kept_out = suites_of(keep_out or (), sessions, overrides)
    print(run(kept_out, sessions=gather(choice, init, row_tokens, output, overrides, kept_out, again=again)))
    forget(output)
