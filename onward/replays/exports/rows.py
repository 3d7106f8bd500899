"""One turn as one row, in the forms that have a row for each turn."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core import codec
from core.events import Completion
from learner.sequences.kept_out import EVAL_SOLUTION, KeptOut, forms_of
from onward.replays.exports.answers import Answer, kept_answer, sampled_answer
from onward.replays.exports.chats import RAW_PROMPT, Message, kept_message, prompt_of, sampled_message
from onward.replays.exports.columns import Row
from onward.replays.selection.known import KnownTurn
from serving.rendering import ModelRenderer

_NO_LOSS: Final = -100  # of a token without a label, as in torch and Hugging Face


class LeftOut(Exception):
    """The form has no place for a turn; the text is the reason under which it is counted."""


@dataclass(frozen=True)
class Maker:
    """What rows are made with. `good`: an answer is good whose reward is more."""

    renderer: ModelRenderer
    kept_out: KeptOut
    good: float

    def prompt(self, turn: Completion) -> list[Message]:
        """Return the request's messages. Raises LeftOut where it was no chat."""
        messages = prompt_of(turn)
        if messages is None:
            raise LeftOut(RAW_PROMPT)
        return messages

    def said(self, turn: Completion, answer: Answer) -> list[Message]:
        return [
            kept_message(turn, answer.token_ids, self.renderer)
            if answer.is_edited
            else sampled_message(turn, self.renderer)
        ]

    def kept(self, known: KnownTurn) -> Answer | None:
        """Return what a user made of the answer; None where it was not edited.

        Raises LeftOut where it must not be learned."""
        if known.reward is None or not known.reward.edits:
            return None
        answer = kept_answer(known.turn, known.reward.edits)
        text = b"".join(map(self.renderer.token_bytes, answer.token_ids)).decode("utf-8", "replace")
        if recalled := self.kept_out.resembled_by(forms_of(text)):
            self.kept_out.left_out.update(recalled)
            raise LeftOut(EVAL_SOLUTION)
        return answer

    def is_good(self, known: KnownTurn) -> bool:
        return known.reward is not None and known.reward.value > self.good

    def best(self, known: KnownTurn) -> Answer:
        """Return what the user kept, else what was sampled if it was good. Raises LeftOut for what was not."""
        kept = self.kept(known)
        if kept is not None:
            return kept
        if not self.is_good(known):
            raise LeftOut("not_good")
        return sampled_answer(known.turn)


def sft(known: KnownTurn, maker: Maker) -> Row:
    """Return a good answer to imitate."""
    answer, prompt = maker.best(known), maker.prompt(known.turn)
    completion = maker.said(known.turn, answer)
    return {
        "prompt": prompt,
        "completion": completion,
        "messages": [*prompt, *completion],
        "tools": tools_text(known.turn),
        "origin": _origin(answer),
        **_tokens(known.turn, answer),
        **about(known),
    }


def tokens(known: KnownTurn, maker: Maker) -> Row:
    """Return the same as the very tokens; what was forced has no label."""
    answer, turn = maker.best(known), known.turn
    labels = [_NO_LOSS if forced else token for token, forced in zip(answer.token_ids, answer.forced, strict=True)]
    return {
        "input_ids": [*turn.prompt_token_ids, *answer.token_ids],
        "labels": [*(_NO_LOSS for _ in turn.prompt_token_ids), *labels],
        "logprobs": [*(None for _ in turn.prompt_token_ids), *answer.logprobs],
        "origin": _origin(answer),
        **about(known),
    }


def kto(known: KnownTurn, maker: Maker) -> Row:
    """Return an answer that was sampled, and whether it was good."""
    answer, prompt = sampled_answer(known.turn), maker.prompt(known.turn)
    return {
        "prompt": prompt,
        "completion": maker.said(known.turn, answer),
        "label": maker.is_good(known),
        "tools": tools_text(known.turn),
        **_tokens(known.turn, answer),
        **about(known),
    }


def rewards(known: KnownTurn, maker: Maker) -> Row:
    """Return a request with the answer that was sampled, and what each of its tokens was worth."""
    turn, reward = known.turn, known.reward
    assert reward is not None, "a turn without a reward is not admitted"
    answer, prompt, kept = sampled_answer(turn), maker.prompt(turn), maker.kept(known)
    completion = maker.said(turn, answer)
    best = maker.said(turn, kept) if kept else completion if maker.is_good(known) else None
    values = [reward.value] * len(answer.token_ids)
    for credit in reward.credits:
        values[credit.start : credit.end] = [credit.value] * (credit.end - credit.start)
    return {
        "data_source": f"onward/{turn.workload}",
        "prompt": prompt,
        "ability": turn.workload,
        "reward_model": {"style": "rule", "ground_truth": "" if best is None else best[0]["content"]},
        "extra_info": {"index": 0, "inference_id": turn.inference_id},
        "completion": completion,
        "tools": tools_text(turn),
        **_tokens(turn, answer),
        "token_rewards": values,
        "credits": [{"start": each.start, "end": each.end, "value": each.value} for each in reward.credits],
        "hints": [{"start": each.start, "end": each.end, "text": each.text} for each in reward.hints],
        "edits": [{"start": each.start, "end": each.end, "token_ids": list(each.token_ids)} for each in reward.edits],
        **about(known),
    }


ROWS: Final[Mapping[str, Callable[[KnownTurn, Maker], Row]]] = {
    "sft": sft,
    "tokens": tokens,
    "kto": kto,
    "rewards": rewards,
}


def about(known: KnownTurn) -> Row:
    turn, reward = known.turn, known.reward
    assert reward is not None, "a turn without a reward is not admitted"
    outcomes = ((each.name, json.dumps(each.value)) for each in known.heard)
    return {
        "inference_id": turn.inference_id,
        "session_id": turn.session_id,
        "namespace": turn.namespace,
        "workload": turn.workload,
        "purpose": turn.purpose,
        "user": turn.user_id,
        "time": turn.received_at.isoformat(),
        "version": str(codec.plain(turn.policy_versions[-1].version)) if turn.policy_versions else None,
        "trainable": turn.trainable,
        "temperature": turn.logprob_space.temperature,
        "reward": reward.value,
        "revision": reward.revision,
        "components": _named(reward.components.items()),
        "outcomes": _named(outcomes),
        "tags": _named(turn.tags.items()),
    }


def tools_text(turn: Completion) -> str | None:
    """Return the tools as JSON, which TRL reads; schemas of arguments have no type that all of them share."""
    return json.dumps(turn.tools) if turn.tools else None


def _named(pairs: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in sorted(pairs)]


def _tokens(turn: Completion, answer: Answer) -> Row:
    return {
        "prompt_token_ids": list(turn.prompt_token_ids),
        "token_ids": list(answer.token_ids),
        "logprobs": list(answer.logprobs),
    }


def _origin(answer: Answer) -> str:
    return "edited" if answer.is_edited else "sampled"
