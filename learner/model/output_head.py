"""Log-probabilities from hidden states, as each family of models computes them.

    logits = cap * tanh(scale * (W h + b) / cap)

Most models have no bias (GPT-J and Phi do), no scale (Cohere multiplies by `logit_scale`, Granite divides by
`logits_scaling`) and no cap (Gemma 2's `final_logit_softcapping`).

Legend: N sampled tokens, C of them at a time, D hidden size, V vocabulary."""

from collections.abc import Sequence
from typing import Any

import torch
from onward_kernels import token_logprobs_and_entropy
from onward_kernels.sampling_mask import SamplingMask
from onward_kernels.token_logprobs import WIDTH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from learner.model.stored import product

_LOGITS_AT_A_TIME = 2**24  # 64 MiB
_NOT_ALLOWED = -1e30  # a logit whose exponential is 0, and finite, so that 0 times it is 0


class OutputHead:
    """The output head of a Hugging Face causal LM.

    It reads the model's weights at each call, since they may be gathered only then."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self._model = model
        self._scale = float(getattr(config, "logit_scale", None) or 1) / float(getattr(config, "logits_scaling", 1))
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)

    @property
    def weight_VD(self) -> Tensor:
        return self._model.get_output_embeddings().weight  # type: ignore[no-any-return]

    @property
    def _bias_V(self) -> Tensor | None:
        return getattr(self._model.get_output_embeddings(), "bias", None)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the logits [N, V]."""
        logits_NV = self._scale * product(hidden_ND, self.weight_VD, self._bias_V)
        return logits_NV if self._cap is None else self._cap * torch.tanh(logits_NV / self._cap)

    def score(
        self, hidden_ND: Tensor, targets_N: Tensor, temperature_N: Tensor, mask: SamplingMask | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (logprobs_N, entropy_N) over the ids that `mask` allows, without holding all logits at once."""
        if self._cap is not None:
            return self._score_in_chunks(mask, hidden_ND, targets_N, temperature_N)
        hidden_ND, weight_VD = self._alike(hidden_ND, self.weight_VD)
        if (bias_V := self._bias_V) is not None:  # one more column, for a hidden state that is always 1
            weight_VD = torch.cat([weight_VD, bias_V[:, None].to(weight_VD.dtype)], 1)
            hidden_ND = nn.functional.pad(hidden_ND, (0, 1), value=1.0)
        if self._scale != 1:
            hidden_ND = self._scale * hidden_ND
        return token_logprobs_and_entropy(hidden_ND, weight_VD, targets_N, temperature_N, mask=mask)

    def candidates(
        self,
        hidden_ND: Tensor,
        temperature_N: Tensor,
        mask: SamplingMask | None,
        count: int,
        always: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Return (ids_NK, logprobs_NK) of each token: the `count` likeliest, then those of `always`, none twice."""
        ids, logprobs = [], []
        fixed = torch.tensor(always, dtype=torch.long, device=hidden_ND.device)
        for tokens in self._chunks(len(hidden_ND)):
            logp_CV = self._all_logprobs(mask, tokens, hidden_ND[tokens], temperature_N[tokens])
            fixed_CS = fixed.expand(len(logp_CV), -1)
            others_CV = logp_CV.scatter(1, fixed_CS, _NOT_ALLOWED)
            best_CK = others_CV.topk(min(count, others_CV.shape[1] - len(always)), 1).indices
            ids.append(torch.cat([best_CK, fixed_CS], 1))
            logprobs.append(logp_CV.gather(1, ids[-1]))
        return torch.cat(ids), torch.cat(logprobs)

    def candidate_logprobs(
        self, hidden_ND: Tensor, ids_NK: Tensor, temperature_N: Tensor, mask: SamplingMask | None
    ) -> Tensor:
        """Return [N, K]: the log-probabilities of candidates, without holding all logits at once."""

        def of(tokens: slice, hidden_CD: Tensor, ids_CK: Tensor, temperature_C: Tensor) -> Tensor:
            return self._all_logprobs(mask, tokens, hidden_CD, temperature_C).gather(1, ids_CK)

        parts = [
            checkpoint(of, tokens, hidden_ND[tokens], ids_NK[tokens], temperature_N[tokens], use_reentrant=False)
            for tokens in self._chunks(len(hidden_ND))
        ]
        return torch.cat(parts)

    def _chunks(self, tokens: int) -> list[slice]:
        size = max(1, _LOGITS_AT_A_TIME // len(self.weight_VD))
        return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]

    def _all_logprobs(
        self, mask: SamplingMask | None, tokens: slice, hidden_CD: Tensor, temperature_C: Tensor
    ) -> Tensor:
        logits_CV = self.logits(hidden_CD) / temperature_C[:, None]
        if mask is not None:
            logits_CV = logits_CV.where(mask.allowed(tokens, slice(0, logits_CV.shape[1])), _NOT_ALLOWED)
        return logits_CV.log_softmax(1)

    @staticmethod
    def _alike(hidden_ND: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
        """Return both as they are multiplied.

        A small matrix is widened as a whole, a large one tile by tile, and not at all for states in half precision."""
        if len(weight_VD) <= WIDTH:
            return hidden_ND.float(), weight_VD.float()
        return hidden_ND, weight_VD if hidden_ND.dtype == torch.float32 else weight_VD.to(hidden_ND.dtype)

    def _score_in_chunks(self, mask: SamplingMask | None, *columns: Tensor) -> tuple[Tensor, Tensor]:
        found = [
            checkpoint(self._score_plainly, mask, tokens, *(each_N[tokens] for each_N in columns), use_reentrant=False)
            for tokens in self._chunks(len(columns[0]))
        ]
        logprobs_N, entropy_N = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logprobs_N, entropy_N

    def _score_plainly(
        self, mask: SamplingMask | None, tokens: slice, hidden_CD: Tensor, targets_C: Tensor, temperature_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        logp_CV = self._all_logprobs(mask, tokens, hidden_CD, temperature_C)
        return logp_CV.gather(1, targets_C[:, None])[:, 0], -(logp_CV.exp() * logp_CV).sum(1)
