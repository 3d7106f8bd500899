"""What the model says in the tried sessions: an answer for each codeword that a user or a tool has said last."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """An answer.

    `codeword` None: whatever was said; `mode`: a word that only a client's request for a title or a summary has."""

    codeword: str | None
    answer: str
    mode: str | None = None
    fills_in: bool = False


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCRIPTS = (
    # A weather report: any client with a function `get_weather`, which answers with the codeword garnet.
    Script("amber", call("get_weather", city="Paris")),
    Script("garnet", "It is mild in Paris today: slate."),
    Script("slate", "The report is in."),
    Script("beryl", "You are welcome."),
    Script("jasper", '{"city": "Paris", "degrees": 21}'),
    Script("topaz", "    return a + b\n", fills_in=True),
    # Agents read notes.txt, which holds the codeword onyx; each has a tool of its own for that.
    Script("opal", call("bash", command="cat notes.txt", description="Shows the notes")),
    Script("coral", call("Bash", command="cat notes.txt")),
    Script("indigo", call("exec_command", cmd="cat notes.txt")),
    Script("onyx", "The notes are read: pearl."),
    Script("pearl", "All is done."),
    # An agent that leaves the reading to another.
    Script(
        "ruby",
        call(
            "task", description="Read the notes", prompt="Read the notes. The codeword is opal", subagent_type="general"
        ),
    ),
    Script("agate", call("report", input="What is the weather in Paris? The codeword is amber.")),
    # mini-swe-agent ends by a command.
    Script("cobalt", call("bash", command="cat notes.txt && echo 'next: amethyst'")),
    Script("amethyst", call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    # aider edits greet.py.
    Script(
        "umber",
        "Here is the change.\n\ngreet.py\n```python\n<<<<<<< SEARCH\n=======\n"
        "def greet():\n    return 1\n>>>>>>> REPLACE\n```\n",
    ),
    Script("sienna", "It greets whoever calls it, and returns 1."),
    # What clients ask for themselves.
    Script(None, "Reading the notes", mode="generator"),
    Script(None, "Add a greeting", mode="imperative"),
    Script(None, "I asked you to make greet.py greet, and you did; it returns 1.", mode="Briefly"),
    Script(None, "The user wanted the notes read. They were read: pearl. Nothing is left to do.", mode="CHECKPOINT"),
    Script(None, "You asked for the notes, and they were read: pearl. Nothing is left to do.", mode="capturing"),
    Script(None, "## Goal\nRead the notes.\n\n## Progress\nThe notes were read: pearl.\n", mode="anchored"),
)
CODEWORDS = tuple(dict.fromkeys(script.codeword for script in SCRIPTS if script.codeword))
MODE_WORDS = tuple(dict.fromkeys(script.mode for script in SCRIPTS if script.mode))
