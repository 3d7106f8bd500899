"""The part of a turn that is kept when its words may not be: its client did not want it stored (`store: false`), say.

That is who asked, when, how much, and by which version."""

from typing import Final

import msgspec

from core.events import Completion, Counts, LogprobSpace, ToolCall

NOT_STORED: Final = "not_stored"
"""The reason for which it never trains, where its client did not want it stored."""
KEPT: Final = frozenset(
    {
        "inference_id", "session_id", "turn_index", "parent_id", "group_id", "namespace", "user_id", "key_id",
        "workload", "priority", "purpose", "client", "protocol", "ignored", "harness_version", "environment_image",
        "received_at", "policy", "policy_versions", "replica", "experiment_id", "arm", "arm_assigned", "propensity",
        "tokenizer_digest", "renderer", "finish_reason", "broken_calls", "delivered_tokens", "ttft_ms", "latency_ms",
        "environment", "learn", "session_done",
    }
)  # fmt: skip
"""Fields that rest as they are. All others are emptied, or made anew in `without_words`: what an event learns to say
does not rest until it is named here."""

_REPORTS_SHOWN: Final = ("reports", "shown")
"""The one tag that rests: that its client reports what it shows, without which nobody could tell what was ignored."""


def without_words(turn: Completion, why: str = NOT_STORED) -> Completion:
    """Return the turn as it may be kept: without text, tokens or digests of what the user or the model said.

    Of its tool calls the ids are kept, which feedback names. `why`: the reason for which it never trains."""
    kept = {name: getattr(turn, name) for name in KEPT}
    sampling = msgspec.structs.replace(turn.sampling, seed=None, stop=(), logit_bias=None, grammar=None)
    return Completion(
        **kept,
        messages=(),
        sampling=sampling,
        logprob_space=LogprobSpace(temperature=turn.logprob_space.temperature),
        prompt_token_ids=(),
        token_ids=(),
        logprobs=(),
        tool_calls=tuple(ToolCall(id=call.id, name="", arguments="", index=call.index) for call in turn.tool_calls),
        tags=dict(tag for tag in turn.tags.items() if tag == _REPORTS_SHOWN),
        trainable=False,
        untrainable_reasons=tuple(dict.fromkeys((*turn.untrainable_reasons, why))),
        unstored=Counts(
            prompt_tokens=len(turn.prompt_token_ids), output_tokens=len(turn.token_ids), characters=len(turn.text)
        ),
    )
