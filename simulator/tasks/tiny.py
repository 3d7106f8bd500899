"""The files that the tiny model is midtrained from.

`python -m simulator.tasks.tiny DIR` writes DIR/corpus (JSON lines) and DIR/init (configuration, tokenizer and chat
template of an untrained model in Hugging Face format)."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from simulator.tasks.corpus import write_corpus
from simulator.tasks.toolbox import TOOLS

CONVERSATIONS = 24_000
SEED = 7
VOCABULARY = 512
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

# Merges may span the constant parts of a tool call, which then cost a token or two; elsewhere they stay within words.
PIECES = "|".join(
    (
        r'\{"name": "[a-z_]+", "arguments": \{\}\}',
        r'\{"name": "[a-z_]+", "arguments": \{"[a-z]+": "?',
        r', "[a-z]+": "',
        r" ?[A-Za-z_]+",
        r"\d",
        r" ?[^\sA-Za-z0-9_]+",
        r"\n",
        r"\s+(?!\S)|\s+",
    )
)

# ChatML. Tools are one line of names: a small context has no room for their schemas.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}<|im_end|>
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

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 384,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": SPECIAL.index("<|endoftext|>"),
    "eos_token_id": SPECIAL.index("<|im_end|>"),
    "pad_token_id": SPECIAL.index("<|pad|>"),
}


def write_init(directory: Path, corpus: Path) -> None:
    """Train the tokenizer on the corpus and write the untrained model's files."""
    directory.mkdir(parents=True, exist_ok=True)
    train_tokenizer(corpus).save(str(directory / "tokenizer.json"))
    stop = [SPECIAL.index("<|im_end|>"), SPECIAL.index("<|endoftext|>")]
    files = {
        "config.json": CONFIG,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|pad|>",
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONFIG["max_position_embeddings"],
        },
        "generation_config.json": {"eos_token_id": stop, "pad_token_id": CONFIG["pad_token_id"], "do_sample": True},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def train_tokenizer(corpus: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, *CALL_MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus), trainer)
    # As in Qwen's tokenizers the marks of a call are tokens of their own but not special: decoding shows them.
    marks = [AddedToken(mark, special=False, normalized=False) for mark in CALL_MARKS]
    tokenizer.add_tokens(marks)
    return tokenizer


def _texts(corpus: Path) -> Iterator[str]:
    """Yield the pieces between special tokens, from a tenth of the corpus."""
    rng = random.Random(SEED)
    for path in sorted(corpus.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            if rng.random() < 0.1:
                yield from _pieces(json.loads(line))


def _pieces(example: dict) -> Iterator[str]:
    if "text" in example:
        return
    if "tools" in example:
        yield "system\ntools:" + "".join(f" {tool['function']['name']}" for tool in TOOLS)
    for message in example["messages"]:
        yield message["role"] + "\n"
        yield message["content"]
        for call in message.get("tool_calls", ()):
            yield f'{{"name": "{call["function"]["name"]}", "arguments": {call["function"]["arguments"]}}}'


def main() -> None:
    directory = Path(sys.argv[1])
    write_corpus(directory / "corpus", CONVERSATIONS, SEED)
    write_init(directory / "init", directory / "corpus")


if __name__ == "__main__":
    main()
