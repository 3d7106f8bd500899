"""Drawing the probe's texts from the anchor, and recording what a policy answers to them (core.model.probes).

Legend: P texts, L tokens of each, S texts at a time, N places of these, C places at a time, K choices, D hidden size, V
vocabulary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from core.errors import WeightsError
from core.model.files import weight_files
from core.model.probes import ProbeRecord, ProbeSet, probe_shape, spread
from core.model.weights_digest import digest_of_shards
from learner.model.output_head import OutputHead
from learner.model.policy_model import PolicyModel
from learner.model.stored import computed_in

_CHOICES = 8
_SEED = 0
_TEXTS_AT_A_TIME = 8
_LOGITS_AT_A_TIME = 1 << 24  # 64 MiB

Prompts = Sequence[Sequence[int]]


def probe_of_model(directory: Path, device: str, prompts: Prompts = ()) -> ProbeRecord:
    """Return the probe of a given model, with texts drawn from it. Raises WeightsError naming the file at fault."""
    digest = digest_of_shards(weight_files(directory))
    policy = PolicyModel(directory, device, frozen=True)
    return record(policy, draw_probe_set(policy, _SEED, prompts), digest)


def draw_probe_set(policy: PolicyModel, seed: int, prompts: Prompts = ()) -> ProbeSet:
    """Draw texts that continue the prompts (core.model.probe_prompts), or begin anew, at temperature 1.

    They are short enough that an engine's context has room for one token more. Of a long prompt the end is used, where
    the model is about to answer. Raises WeightsError when the policy's outputs are not finite."""
    generator = torch.Generator().manual_seed(seed)
    config = policy.model.config.get_text_config()
    first = next((t for t in (config.bos_token_id, config.eos_token_id) if isinstance(t, int)), 0)
    shape = probe_shape(policy.model.num_parameters(), policy.model.device.type)
    starts = spread(prompts or [(first,)], shape.texts)
    length = min(shape.most, max(shape.least, shape.own + max(map(len, starts))), config.max_position_embeddings - 1)
    starts = [prompt[-max(1, length - shape.own) :] for prompt in starts]
    drawn, choices, cache = [torch.tensor([prompt[:1] for prompt in starts])], [], None
    with _answering(policy):
        while len(drawn) < length:
            newest_P1 = drawn[-1].to(policy.model.device)
            output = policy.model(input_ids=newest_P1, past_key_values=cache, use_cache=True)
            chances_PV, cache = output.logits[:, -1].float().softmax(-1).cpu(), output.past_key_values
            if not bool(torch.isfinite(chances_PV).all()):
                raise WeightsError("the outputs of the model that the probe is drawn from are not finite")
            own_P1 = torch.multinomial(chances_PV, 1, generator=generator)
            place = len(drawn)
            own = own_P1.flatten().tolist()
            given = [prompt[place] if place < len(prompt) else own[text] for text, prompt in enumerate(starts)]
            drawn.append(torch.tensor(given)[:, None])
            choices.append(chances_PV.topk(min(_CHOICES, chances_PV.shape[-1])).indices)
    ids_PL, choices_PLK = torch.cat(drawn, dim=1), torch.stack(choices, dim=1)
    return ProbeSet(
        token_ids=tuple(tuple(text) for text in ids_PL.tolist()),
        choices=tuple(tuple(tuple(place) for place in text) for text in choices_PLK.tolist()),
    )


def record(policy: PolicyModel, probe_set: ProbeSet, weights_digest: str) -> ProbeRecord:
    """Record a policy's answers: the same weights give the same bits, with at most 64 MiB of logits in memory."""
    return policy.inside(lambda: _record(policy, probe_set, weights_digest))


def _record(policy: PolicyModel, probe_set: ProbeSet, weights_digest: str) -> ProbeRecord:
    head_VD = policy.head.weight_VD
    ids_PL = torch.tensor(probe_set.token_ids, device=head_VD.device)
    wanted_PLK = torch.cat([ids_PL[:, 1:, None], torch.tensor(probe_set.choices, device=head_VD.device)], dim=-1)
    parts: list[tuple[Tensor, Tensor]] = []
    with _answering(policy):
        for start in range(0, len(ids_PL), _TEXTS_AT_A_TIME):
            some = slice(start, start + _TEXTS_AT_A_TIME)
            hidden_SLD = policy.model.base_model(input_ids=ids_PL[some], use_cache=False).last_hidden_state
            parts += _score(hidden_SLD[:, :-1].flatten(0, 1), policy.head, wanted_PLK[some].flatten(0, 1))
    found_PLK = torch.cat([found_CK for found_CK, _ in parts]).view(wanted_PLK.shape).tolist()
    entropy_N = torch.cat([entropy_C for _, entropy_C in parts])
    return ProbeRecord(
        token_ids=probe_set.token_ids,
        choices=probe_set.choices,
        logprobs=tuple(tuple(place[0] for place in text) for text in found_PLK),
        choice_logprobs=tuple(tuple(tuple(place[1:]) for place in text) for text in found_PLK),
        entropy=float(entropy_N.mean()),
        finite=bool(torch.isfinite(entropy_N).all()),
        dtype=str(computed_in(head_VD.device)).removeprefix("torch."),
        weights_digest=weights_digest,
        entropies=tuple(map(tuple, entropy_N.view(wanted_PLK.shape[:-1]).tolist())),
    )


def _score(hidden_ND: Tensor, head: OutputHead, wanted_NK: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (log-probabilities of the wanted tokens [C, K], entropy_C), chunk by chunk.

    A logit that is not finite makes the entropy at its place NaN."""
    chunk = max(1, _LOGITS_AT_A_TIME // len(head.weight_VD))
    for start in range(0, len(hidden_ND), chunk):
        some = slice(start, start + chunk)
        logp_CV = head.logits(hidden_ND[some]).float().log_softmax(-1)
        yield logp_CV.gather(1, wanted_NK[some]), -(logp_CV.exp() * logp_CV).sum(-1)


@contextmanager
def _answering(policy: PolicyModel) -> Iterator[None]:
    """Switch gradients and dropout off for a while."""
    training = policy.model.training
    policy.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        policy.model.train(training)
