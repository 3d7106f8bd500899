"""Drafts of cases: `SUITE/drafts/NAME.toml`, each of one session, until a person accepts or rejects it.

    [draft]
    name = "…"
    solution = "…"          kept out of training from the moment that the file is there
    [[draft.messages]]      as in a case
    [draft.source]          the turn, and what became of its answer
    [draft.reuse]           who let it be used, and for what
    [draft.work]            of an agent's session: what the agent changed and ran, which becomes a task

No run asks drafts. What was rejected lies in `SUITE/drafts/rejected` with the reason, and is not drafted again. Who
decided stands in `[case.review]` or `[draft.review]`."""
