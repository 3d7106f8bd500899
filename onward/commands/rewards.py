"""`onward rewards`: shows rewards as they come, and the story of one turn."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from core.errors import OnwardError
from onward.commands.client import call, opened
from onward.output import console, show_line, visible

_AGAIN_S = 1.0


def tail(
    directory: Path, key: str | None, workload: str | None, after: int | None, count: int | None, *, as_json: bool
) -> None:
    """Print a line for each revision in the key's namespace, until interrupted or `count` were shown.

    `as_json`: the line is all that is known of it; that the stream broke is said on stderr. It resumes when the service
    comes back. Raises OnwardError when the service cannot be reached at the start."""
    shown_on = console(soft_wrap=True)
    shown = 0
    for reward in _follow(directory, key, after):
        if workload in (None, reward["workload"]):
            show_line(reward) if as_json else shown_on.print(_line(reward))
            shown += 1
            if shown == count:
                return


def explain(directory: Path, inference_id: str, key: str | None) -> None:
    """Print the outcomes reported for a turn, and what they were worth, in order of time.

    What a reward says of some of the turn's tokens follows it, a line for each span."""
    turn = call(directory, "GET", f"/v1/rewards/{quote(inference_id, safe='')}", key)
    shown_on = console(soft_wrap=True)
    spans = ", ".join(str(span["version"]) for span in turn["policy_versions"]) or "none"
    shown_on.print(
        f"{turn['inference_id']}  turn {turn['turn_index']} of session {turn['session_id']}\n"
        f"workload {turn['workload']}, version {spans}, {turn['completion_tokens']} tokens, {turn['finish_reason']}\n"
    )
    lines = [(turn["received_at"], "asked")]
    lines += [(outcome["received_at"], _said(outcome)) for outcome in turn["outcomes"]]
    lines += [(reward["decided_at"], "\n".join([_decided(reward), *_spans(reward)])) for reward in turn["rewards"]]
    for at, line in sorted(lines, key=lambda entry: entry[0]):
        shown_on.print(f"{at}  {line}")
    if not turn["rewards"]:
        shown_on.print("no reward yet")


# ---------------------------------------------------------------------------------------------- the stream


def _follow(directory: Path, key: str | None, after: int | None) -> Iterator[dict[str, Any]]:
    is_open = False
    while True:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        try:
            with opened(directory, "GET", "/v1/rewards/stream", key, headers=headers) as stream:
                is_open = True
                for reward in _events(stream):
                    after = reward["sequence"]
                    yield reward
        except (OnwardError, OSError) as error:
            if not is_open:
                raise
            print(visible(f"({error}; trying again)"), file=sys.stderr, flush=True)
        time.sleep(_AGAIN_S)


def _events(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Ours are one line of data each."""
    for line in stream:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


# ---------------------------------------------------------------------------------------------- words


def _line(reward: dict[str, Any]) -> str:
    return f"{reward['decided_at']}  {reward['inference_id']}  {reward['workload']:12}  {_decided(reward)}"


def _decided(reward: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {value:+.3g}" for name, value in sorted(reward["components"].items())) or "nothing"
    last = "" if reward["final"] else ", not final"
    return f"reward {reward['value']:+.3f}  revision {reward['revision']}{last}: {parts}  ({reward['why']})"


def _spans(reward: dict[str, Any]) -> Iterator[str]:
    """Yield what a reward says of some of the turn's tokens."""
    for credit in reward["credits"]:
        yield f"    {_tokens(credit)} are credited {credit['value']:+.3f}"
    for edit in reward["edits"]:
        yield f"    {_tokens(edit)} were replaced by {len(edit['token_ids'])} of the user's"
    for hint in reward["hints"]:
        yield f"    {_tokens(hint)}: {json.dumps(hint['text'], ensure_ascii=False)}"


def _tokens(span: dict[str, Any]) -> str:
    return f"tokens [{span['start']}, {span['end']})"


def _said(outcome: dict[str, Any]) -> str:
    whose = "" if outcome["inference_id"] else " of the session"
    amends = f", instead of {outcome['supersedes']}" if outcome["supersedes"] else ""
    value = "withdrawn" if outcome["withdrawn"] else json.dumps(outcome["value"])
    return f"{outcome['name']}{whose}: {value}, by {outcome['source']}{_target(outcome)}{amends}"


def _target(outcome: dict[str, Any]) -> str:
    """Say which part of the answer an outcome is about, where it is about a part."""
    if outcome["target_range"]:
        return f", of {_tokens(outcome['target_range'])}"
    return f", of call {outcome['target_call']['tool_call_id']}" if outcome["target_call"] else ""
