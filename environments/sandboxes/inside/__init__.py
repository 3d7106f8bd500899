"""What runs inside a sandbox: the supervisor, and the processes that it forks for commands.

Every sandbox starts a Python for it, so that these modules import little: `typing`, `json` and `socket` would take
more time than all the rest."""
