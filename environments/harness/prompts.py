"""The words with which the harness itself speaks to the model. A change of them is another version of the harness."""

from environments.harness.model import Message

SYSTEM = """\
You work on a task in a repository, by calling tools. Its working copy is {workdir}; paths are relative to it.
Look before you change: find the place, read it, change it, run the tests. Ask for several things at once where none
depends on another: calls that only read run side by side. When the work is done, call `done`."""

SUMMARISE = """\
There is no room for more. Write down what you need to go on with the task: what you did, what you found (names, places,
values, exactly), what is left. All that was said so far will be gone but for the task and what you write now."""

GO_ON = "Go on with the task from there."

CUT_OFF = "Your last answer was cut off for its length. Go on: call a tool, or `done`."

ALL = (SYSTEM, SUMMARISE, GO_ON, CUT_OFF)


def opening(workdir: str, instruction: str, summary: str | None = None, *, is_told_how: bool = True) -> list[Message]:
    """Return the messages with which a context begins: the task and, where one was written, the model's summary.

    `is_told_how`: the task comes after words on how to work. The summary stands as the model's own answer, by which the
    service knows which turn this one continues."""
    said: list[Message] = [{"role": "system", "content": SYSTEM.format(workdir=workdir)}] if is_told_how else []
    said.append({"role": "user", "content": instruction})
    if summary is not None:
        said += [{"role": "assistant", "content": summary}, {"role": "user", "content": GO_ON}]
    return said
