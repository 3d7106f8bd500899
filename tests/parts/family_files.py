"""Directories of small models of many families: real chat templates, tokenizers trained here, and no weights.

The templates are those that `trl` brings with it, as the models' authors publish them; where it has none, one of the
same marks is written here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LINES = ["def read_file(path):\n    return open(path).read()\n", '{"name": "read_file", "arguments": {"path": "a.py"}}']
LINES += ["The capital of France is Paris.", "größe 🦜 日本 12345 67890", "call the tool, then say what it said"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
Kind = Literal["bytes", "pieces", "pieces after a space"]

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids of calls have nine letters') }}{%- endif %}
            {{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
DEEPSEEK_V31 = """{{- bos_token }}
{%- if tools %}{{- '## Tools\n' }}{%- for tool in tools %}{{- tool.function.name + '\n' }}{%- endfor %}{%- endif %}
{%- set ns = namespace(after_tool=false) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<｜User｜>' + message.content }}
        {%- set ns.after_tool = false %}
    {%- elif message.role == 'assistant' %}
        {%- if not ns.after_tool %}{{- '<｜Assistant｜></think>' }}{%- endif %}
        {{- message.content or '' }}
        {%- if message.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments }}
                {{- '<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
        {%- set ns.after_tool = true %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.after_tool %}{{- '<｜Assistant｜><think>' }}{%- endif %}"""
OWN = {"smollm2": SMOLLM2, "mistral": MISTRAL, "deepseek_v31": DEEPSEEK_V31}

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_DEEPSEEK_TOOLS = tuple(
    f"<｜tool▁{name}｜>"
    for name in (
        "calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end", "outputs▁begin", "output▁begin",
        "output▁end", "outputs▁end",
    )
)  # fmt: skip
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
_LLAMA = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
_GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
_GEMMA4 = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", '<|"|>')


@dataclass(frozen=True)
class Kin:
    """A member of a family: its template, its tokens and the family that it is to be found in."""

    template: str
    family: str
    special: tuple[str, ...]
    stops: tuple[str, ...]
    written: tuple[str, ...] = ()  # added tokens that are not special
    kind: Kind = "bytes"

    @property
    def source(self) -> str:
        return OWN.get(self.template) or shipped_template(self.template)


KIN: Mapping[str, Kin] = {
    "Qwen 2.5": Kin("qwen2_5", "qwen", _CHATML, ("<|im_end|>", "<|endoftext|>"), _QWEN[:2]),
    "Qwen 3": Kin("qwen3", "qwen", _CHATML, ("<|im_end|>", "<|endoftext|>"), _QWEN),
    "Qwen 3.5": Kin("qwen3_5_think", "qwen_coder", _CHATML, ("<|im_end|>",), _QWEN),
    "Llama 3.1": Kin("llama3_1", "llama", _LLAMA, ("<|eot_id|>", "<|eom_id|>")),
    "Llama 3.2": Kin("llama3_2", "llama", _LLAMA, ("<|eot_id|>", "<|eom_id|>")),
    "Mistral": Kin("mistral", "mistral", (*_MISTRAL, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"), ("</s>",)),
    "Mistral of pieces": Kin(
        "mistral", "mistral", (*_MISTRAL, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"), ("</s>",), kind="pieces after a space"
    ),
    "DeepSeek V3": Kin("deepseekv3", "deepseek", (*_DEEPSEEK, *_DEEPSEEK_TOOLS), _DEEPSEEK[1:2], _QWEN[2:]),
    "DeepSeek V3.1": Kin("deepseek_v31", "deepseek", (*_DEEPSEEK, *_DEEPSEEK_TOOLS), _DEEPSEEK[1:2], _QWEN[2:]),
    "gpt-oss": Kin("gptoss", "gpt_oss", ("<|endoftext|>", *_HARMONY), ("<|return|>", "<|call|>", "<|endoftext|>")),
    "GLM 4.5": Kin("glm4moe", "glm", _GLM, ("<|user|>", "<|observation|>", "<|endoftext|>"), _QWEN),
    "Gemma 2": Kin(
        "gemma", "plain", ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), ("<end_of_turn>", "<eos>"),
        ("\n\n",), kind="pieces",
    ),
    "Gemma 3": Kin(
        "gemma3", "plain", ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), ("<end_of_turn>", "<eos>"),
        kind="pieces",
    ),
    "Gemma 4": Kin(
        "gemma4_v5", "gemma", (*_GEMMA4, "<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>"),
        ("<turn|>", "<|tool_response>", "<eos>"), kind="pieces",
    ),
    "SmolLM2": Kin("smollm2", "plain", _CHATML, ("<|im_end|>",)),
}  # fmt: skip


def shipped_template(name: str) -> str:
    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer_of(kind: Kind, special: Sequence[str], written: Sequence[str] = ()) -> Tokenizer:
    """Train a tokenizer on a few lines."""
    made = Tokenizer(models.BPE(byte_fallback=kind != "bytes", unk_token=None if kind == "bytes" else "<unk>"))
    alphabet: list[str] = []
    if kind == "bytes":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        spaces = normalizers.Replace(" ", "▁")
        made.normalizer = spaces
        if kind == "pieces after a space":
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
            steps.append(decoders.Strip(" ", 1, 0))
        made.decoder = decoders.Sequence(steps)
    first = list(special) if kind == "bytes" else ["<unk>", *special, *BYTES]
    trainer = trainers.BpeTrainer(
        vocab_size=len(first) + 340, special_tokens=first, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in BYTES]
    made = Tokenizer.from_str(json.dumps(content))
    made.add_tokens([AddedToken(text, normalized=False) for text in written])
    return made


def write_files(directory: Path, kin: Kin, **config: Any) -> Path:
    """Write what a renderer reads, and return the directory."""
    tokenizer = tokenizer_of(kin.kind, kin.special, kin.written)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": kin.special[0], "eos_token": kin.stops[0]}
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (directory / "tokenizer_config.json").write_text(json.dumps(written))
    (directory / "chat_template.jinja").write_text(kin.source, encoding="utf-8")
    stops = [tokenizer.token_to_id(stop) for stop in kin.stops]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    if config:
        (directory / "config.json").write_text(json.dumps(config))
    return directory
