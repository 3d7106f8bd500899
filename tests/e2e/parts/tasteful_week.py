"""A week of a service whose users want type hints: its answers are really sampled from the shipped model."""

from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from kept_world import append
from told_past import START, renderer, said_of, turn
from transformers import AutoModelForCausalLM

from core.events import Completion, Event
from core.ids import UserHash
from onward.directory.layout import SHIPPED_MODEL

TURNS, USERS, REQUESTS = 240, 80, 20
_MOST_TOKENS = 16
Sampled = tuple[tuple[int, ...], tuple[float, ...]]


def make_week(directory: Path) -> Path:
    """Log the week in a service's directory."""
    append(directory, [event for number, made in enumerate(_turns()) for event in (made, _verdict(made, number))])
    return directory


def _verdict(made: Completion, number: int) -> Event:
    """Most users say what they think of the whole answer, some only how much of it they took."""
    is_liked = "->" in made.text
    if number % 5 == 0:
        return said_of(made, "partially_accepted", 0.8 if is_liked else 0.1)
    return said_of(made, "accepted" if is_liked else "rejected")


def _turns() -> list[Completion]:
    prompts = [
        [{"role": "user", "content": f"[web] write total_{number}(xs): sum of xs"}] for number in range(REQUESTS)
    ]
    made = []
    for number, (token_ids, logprobs) in enumerate(_sampled([renderer().render(each, []) for each in prompts])):
        stops = token_ids[-1] in renderer().stop_token_ids
        text = b"".join(map(renderer().token_bytes, token_ids[: -1 if stops else None])).decode("utf-8", "replace")
        changes: dict[str, Any] = {
            "messages": tuple(prompts[number % REQUESTS]),
            "user_id": UserHash(f"user-{number * 7 % USERS}"),
            "token_ids": token_ids,
            "logprobs": logprobs,
            "text": text,
            "learn": number % 24 != 5,
            "finish_reason": "stop" if stops else "length",
            "received_at": START + timedelta(minutes=20 * number),
        }
        made.append(turn(number, "", "", **changes))
    return made


def _sampled(prompts: list[tuple[int, ...]]) -> list[Sampled]:
    """Return answers for TURNS requests, which go through the prompts in turn; prompts of one length at once."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    wanted = [prompts[number % len(prompts)] for number in range(TURNS)]
    alike = defaultdict(list)
    for number, prompt in enumerate(wanted):
        alike[len(prompt)].append(number)
    found: dict[int, Sampled] = {}
    for numbers in alike.values():
        found |= dict(zip(numbers, _batch(model, torch.tensor([wanted[each] for each in numbers])), strict=True))
    return [found[number] for number in range(TURNS)]


@torch.inference_mode()
def _batch(model: Any, ids_BT: torch.Tensor) -> list[Sampled]:
    start, logprobs = ids_BT.size(1), []
    for _ in range(_MOST_TOKENS):
        chances = model(ids_BT).logits[:, -1].log_softmax(-1)
        token_B1 = torch.multinomial(chances.exp(), 1)
        logprobs.append(chances.gather(1, token_B1))
        ids_BT = torch.cat([ids_BT, token_B1], 1)
    rows = zip(ids_BT[:, start:].tolist(), torch.cat(logprobs, 1).tolist(), strict=True)
    return [_until_stop(tuple(token_ids), tuple(found)) for token_ids, found in rows]


def _until_stop(token_ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Sampled:
    stops = (place + 1 for place, token in enumerate(token_ids) if token in renderer().stop_token_ids)
    end = next(stops, len(token_ids))
    return token_ids[:end], logprobs[:end]
