"""A model that says what a script says, whatever else stands in the prompt, made without training.

    python tests/clients/script_model.py DIR

Clients are tried on the real path: template, tokens, prefill, sampling at temperature 1, parser, capture and log. Only
what the model wants to say has to be certain, beneath prompts of any length that nobody here wrote. No trained model is
that a laptop serves quickly, so its weights are written down: a decoder of Llama's shape with one layer.

- Five heads attend to exactly the tokens 1 to 5 before, by rotations that agree at that distance alone.
- One head attends to the last codeword: a word of `model_scripts.py` that the user or a tool has said. It is an
  ordinary token, with a key of its own, whose rotation falls with distance.
- One head attends to the last mode word, by which clients' requests for titles and summaries are told apart.
- Of the feed-forward part each neuron knows one place in one script: these seven and the present token. It is active
  where all agree and gives the script's next token. Where none is active, the answer ends.

To the engine it is a model like any other: sampled, with log-probabilities close to 0, and trainable."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from model_scripts import CODEWORDS, MODE_WORDS, SCRIPTS, Script
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

CONTEXT_TOKENS = 65_536
VOCABULARY = 8192
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
)
CALL_MARKS = ("<tool_call>", "</tool_call>")
TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these tools:{% for tool in tools %}

{{ tool.function | tojson }}{% endfor %}

Call one as <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}{% set arguments = call.function.arguments %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ arguments if arguments is string else arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# The places of the residual stream: the codes of the token, of those before it, of codeword and mode, of the answer.
CODE = 32
BEFORE = 5
CODEWORD, MODE, ANSWER = BEFORE + 1, BEFORE + 2, BEFORE + 3
SLOTS = BEFORE + 4
ONE, IS_CODEWORD, IS_MODE, BALANCE = (SLOTS * CODE + number for number in range(4))
HIDDEN = SLOTS * CODE + 6  # a multiple of the heads, as transformers wants it
HEADS, HEAD_DIM = BEFORE + 2, 64
THETA = 1e5

_NORM = 2.0  # of each embedding: equal, so that normalising changes nothing between tokens
_POINTING = 30.0  # the logits that a frequency adds at the distance sought
_RECENT = 200_000.0  # the logits of a codeword nearby; they fall by more than 1 with each token of distance
_NOTHING = 0.01  # what the start of a message has of a codeword, for texts without any
_AGREEMENT = 160.0  # what a neuron gets for one more place that agrees
_LIKENESS = 0.82  # most that codes of two tokens may agree
_SPOKEN = 20.0
_CERTAINTY = 4.0
_END = 5.0


def make(directory: Path, texts: Sequence[str]) -> None:
    """Write the model in Hugging Face's format; the tokenizer is trained on `texts`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(texts)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    neurons = places(tokenizer)
    stop = SPECIAL.index("<|im_end|>")
    files = {
        "config.json": _config(len(neurons)),
        "generation_config.json": {"eos_token_id": [stop], "do_sample": True},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|pad|>",
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_TOKENS,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    save_file(weights(tokenizer, neurons), directory / "model.safetensors", {"format": "pt"})


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Train byte-level BPE in which each codeword, with a space before it or without, is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, *CALL_MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [form for word in (*CODEWORDS, *MODE_WORDS) for form in (f" {word}", word)]
    often = [word for word in words for _ in range(5000)] + [script.answer for script in SCRIPTS for _ in range(200)]
    tokenizer.train_from_iterator([*texts, *often], trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in CALL_MARKS])
    for word in words:
        if len(tokenizer.encode(word).ids) != 1:
            raise ValueError(f"{word!r} is not one token")
    return tokenizer


Place = tuple[tuple[int | None, ...], str | None, str]
"""Where a script is: the present token and those before it, the latest first (None: any); the codeword (None: any); the
mode word, or what begins a text without any."""


def places(tokenizer: Tokenizer) -> dict[Place, int]:
    """Return the next token of each place of each script. Raises ValueError where two scripts cannot be told apart."""
    found: dict[Place, int] = {}
    for script in SCRIPTS:
        for place, token in _steps(tokenizer, script):
            if found.setdefault(place, token) != token:
                said = tokenizer.decode([each for each in reversed(place[0]) if each is not None])
                raise ValueError(f"{script.codeword}: after {said!r} there are two ways to go on")
    return found


def _steps(tokenizer: Tokenizer, script: Script) -> Iterator[tuple[Place, int]]:
    opening = "<|fim_middle|>" if script.fills_in else "<|im_end|>\n<|im_start|>assistant\n"
    said: list[int | None] = [None] * (BEFORE + 1) + list(tokenizer.encode(opening).ids)
    codeword = script.codeword
    mode = script.mode or ("<|fim_prefix|>" if script.fills_in else "<|im_start|>")
    for token in [*tokenizer.encode(script.answer).ids, SPECIAL.index("<|im_end|>")]:
        yield (tuple(reversed(said[-BEFORE - 1 :])), codeword, mode), token
        said.append(token)
        word = tokenizer.decode([token]).strip()
        if word in CODEWORDS and codeword is not None:  # the model hears itself, too
            codeword = word


def weights(tokenizer: Tokenizer, neurons: dict[Place, int]) -> dict[str, Tensor]:
    """Return the tensors under transformers' names."""
    draw = torch.Generator().manual_seed(0)
    codes_VC = torch.nn.functional.normalize(torch.randn(VOCABULARY, CODE, generator=draw), dim=1)
    answers_VC = torch.nn.functional.normalize(torch.randn(VOCABULARY, CODE, generator=draw), dim=1)
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": _embedding(tokenizer, codes_VC),
        "lm_head.weight": _head(answers_VC),
        "model.norm.weight": torch.ones(HIDDEN),
        layer + "input_layernorm.weight": torch.ones(HIDDEN),
        layer + "post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
    tensors |= {f"{layer}self_attn.{name}_proj.weight": tensor for name, tensor in _attention().items()}
    parts = _feed_forward(tokenizer, neurons, codes_VC, answers_VC)
    tensors |= {f"{layer}mlp.{name}_proj.weight": tensor for name, tensor in parts.items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _embedding(tokenizer: Tokenizer, codes_VC: Tensor) -> Tensor:
    embedding_VE = torch.zeros(VOCABULARY, HIDDEN)
    embedding_VE[:, _slot(0)] = codes_VC
    embedding_VE[:, ONE] = 1.0
    embedding_VE[SPECIAL.index("<|im_start|>"), [IS_CODEWORD, IS_MODE]] = _NOTHING
    for mark in ("<|fim_prefix|>",):
        embedding_VE[SPECIAL.index(mark), [IS_CODEWORD, IS_MODE]] = _NOTHING
    for words, channel in ((CODEWORDS, IS_CODEWORD), (MODE_WORDS, IS_MODE)):
        for word in words:
            bare, spaced = _id(tokenizer, word), _id(tokenizer, f" {word}")
            embedding_VE[[bare, spaced], channel] = 1.0
            embedding_VE[bare, _slot(0)] = embedding_VE[spaced, _slot(0)]  # one word, however it stands in the text
    embedding_VE[:, BALANCE] = (_NORM**2 - embedding_VE.square().sum(1)).sqrt()
    return embedding_VE


def _id(tokenizer: Tokenizer, text: str) -> int:
    return int(tokenizer.encode(text).ids[0])


def _slot(number: int) -> slice:
    return slice(number * CODE, (number + 1) * CODE)


def _attention() -> dict[str, Tensor]:
    """Return the heads' weights; the rotation of a pair is of the dimensions (f, f + D/2), as in transformers."""
    half, scale = HEAD_DIM // 2, math.sqrt(HIDDEN) / _NORM
    speeds = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    query_HDE = torch.zeros(HEADS, HEAD_DIM, HIDDEN)
    key_DE, value_DE = torch.zeros(HEAD_DIM, HIDDEN), torch.zeros(HEAD_DIM, HIDDEN)
    sharpness = math.sqrt(HEAD_DIM) / scale**2
    codeword_pair, mode_pair = half - 1, half - 2
    key_DE[: half - 2, ONE] = 1.0
    key_DE[codeword_pair, IS_CODEWORD] = 1.0
    key_DE[mode_pair, IS_MODE] = 1.0
    for head in range(BEFORE):
        angles = (speeds[: half - 2] * (head + 1)).float()
        query_HDE[head, : half - 2, ONE] = _POINTING * sharpness * angles.cos()
        query_HDE[head, half : HEAD_DIM - 2, ONE] = -_POINTING * sharpness * angles.sin()
    for head, pair in ((BEFORE, codeword_pair), (BEFORE + 1, mode_pair)):
        ahead = math.pi / 2 - 0.08 - float(speeds[pair]) * CONTEXT_TOKENS  # so that it falls, and stays above 0
        query_HDE[head, pair, ONE] = _RECENT * sharpness * math.cos(ahead)
        query_HDE[head, half + pair, ONE] = _RECENT * sharpness * math.sin(ahead)
    value_DE[:CODE, _slot(0)] = torch.eye(CODE) / scale
    output_EHD = torch.zeros(HIDDEN, HEADS, HEAD_DIM)
    for head in range(HEADS):
        output_EHD[_slot(head + 1), head, :CODE] = torch.eye(CODE)
    return {"q": query_HDE.flatten(0, 1), "k": key_DE, "v": value_DE, "o": output_EHD.flatten(1)}


def _feed_forward(
    tokenizer: Tokenizer, neurons: dict[Place, int], codes_VC: Tensor, answers_VC: Tensor
) -> dict[str, Tensor]:
    scale = math.sqrt(HIDDEN / (_NORM**2 + HEADS))
    gate_FE, up_FE = torch.zeros(len(neurons), HIDDEN), torch.zeros(len(neurons), HIDDEN)
    down_EF = torch.zeros(HIDDEN, len(neurons))
    up_FE[:, ONE] = 1 / scale
    active = _AGREEMENT * (1 - _LIKENESS) / 2
    for number, ((before, codeword, mode), token) in enumerate(neurons.items()):
        sought = dict(enumerate(before))
        sought[CODEWORD] = None if codeword is None else _id(tokenizer, f" {codeword}")
        sought[MODE] = SPECIAL.index(mode) if mode in SPECIAL else _id(tokenizer, f" {mode}")
        known = {slot: each for slot, each in sought.items() if each is not None}
        for slot, each in known.items():
            gate_FE[number, _slot(slot)] = codes_VC[each] * _AGREEMENT / scale
            _check_unlike(tokenizer, codes_VC, each)
        gate_FE[number, ONE] = (active - _AGREEMENT * len(known)) / scale
        down_EF[_slot(ANSWER), number] = answers_VC[token] * _SPOKEN / active
    return {"gate": gate_FE, "up": up_FE, "down": down_EF}


def _check_unlike(tokenizer: Tokenizer, codes_VC: Tensor, token: int) -> None:
    likeness_V = codes_VC @ codes_VC[token]
    likeness_V[token] = 0
    if likeness_V.max() > _LIKENESS:
        raise ValueError(f"the codes of {tokenizer.id_to_token(token)!r} and another token are too much alike")


def _head(answers_VC: Tensor) -> Tensor:
    head_VE = torch.zeros(VOCABULARY, HIDDEN)
    head_VE[:, _slot(ANSWER)] = answers_VC * _CERTAINTY
    head_VE[SPECIAL.index("<|im_end|>"), ONE] = _END
    return head_VE


def _config(neurons: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": neurons,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index("<|im_end|>"),
        "pad_token_id": SPECIAL.index("<|pad|>"),
    }


def own_texts(root: Path) -> list[str]:
    """Return prose and code to train the tokenizer on."""
    paths = [*sorted(root.glob("docs/**/*.md")), *sorted(root.glob("api/**/*.py"))]
    return [path.read_text() for path in paths]


if __name__ == "__main__":
    make(Path(sys.argv[1]), own_texts(Path(__file__).parents[2]))
