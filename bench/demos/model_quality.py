"""The quality of the base and the midtrained model before any user taught them: `python -m bench model_quality`.

It samples at temperature 1 from stock transformers, over served tasks, and judges as the simulator does."""

import asyncio
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bench.table import Row, report
from simulator.tasks.sampling import UserTask, sample_task
from simulator.tasks.sandbox import ForkServer
from simulator.tasks.taste import SessionQuality, Taste, judge_fix, judge_write
from simulator.tasks.toolbox import TOOLS
from simulator.users.editor import Editor

ROOT = Path(__file__).resolve().parents[2]
TASKS = 256
MAX_TURNS = 7
CALL = re.compile(r'^<tool_call>\n\{"name": "(\w+)", "arguments": (\{.*\})\}\n</tool_call>$')


def sample(model: Any, tokenizer: Any, prompts: list[str]) -> list[str]:
    """Return one answer a prompt, without the end mark; cut off at 72 tokens."""
    tokenizer.padding_side = "left"
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.inference_mode():
        output = model.generate(**encoded, max_new_tokens=72, do_sample=True, top_k=0, top_p=1.0, temperature=1.0)
    texts = tokenizer.batch_decode(output[:, encoded.input_ids.shape[1] :])
    return [text.split("<|im_end|>")[0] for text in texts]


async def judge_writes(model: Any, tokenizer: Any, tasks: list[UserTask], sandbox: ForkServer) -> list[SessionQuality]:
    prompts = [prompt(tokenizer, [user(task)], None) for task in tasks]
    answers = sample(model, tokenizer, prompts)
    results = [await sandbox.run(answer, task.tests) for answer, task in zip(answers, tasks, strict=True)]
    return [
        judge_write(answer, result.all_passed, Taste().style(task))
        for answer, result, task in zip(answers, results, tasks, strict=True)
    ]


async def judge_fixes(model: Any, tokenizer: Any, tasks: list[UserTask], sandbox: ForkServer) -> list[SessionQuality]:
    editors = [Editor(task, sandbox) for task in tasks]
    talks = [[user(task)] for task in tasks]
    for _ in range(MAX_TURNS):
        running = [index for index, editor in enumerate(editors) if editor.ending is None]
        if not running:
            break
        answers = sample(model, tokenizer, [prompt(tokenizer, talks[index], TOOLS) for index in running])
        for index, answer in zip(running, answers, strict=True):
            await step(editors[index], talks[index], answer)
    return [judge_fix(e.code, await e.tests_pass(), e.ending == "done") for e in editors]


async def step(editor: Editor, talk: list[dict[str, Any]], answer: str) -> None:
    call = CALL.match(answer)
    if call is None:
        editor.ending = "malformed"
        return
    result = await editor.call(call[1], call[2])
    function = {"name": call[1], "arguments": call[2]}
    talk += [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
    talk += [{"role": "tool", "content": result}]


def user(task: UserTask) -> dict[str, Any]:
    return {"role": "user", "content": task.request}


def prompt(tokenizer: Any, messages: list[dict[str, Any]], tools: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True))


async def measure(name: str, model: Any, tokenizer: Any) -> list[Row]:
    rng = random.Random(11)
    sandbox = ForkServer()
    rows = []
    try:
        for kind, judge in (("write", judge_writes), ("fix", judge_fixes)):
            tasks = [sample_task(rng, kind) for _ in range(TASKS)]  # type: ignore[arg-type]
            qualities = await judge(model, tokenizer, tasks, sandbox)
            for figure in ("syntax_ok", "tests_pass", "good"):
                share = sum(getattr(quality, figure) for quality in qualities) / TASKS
                rows.append(Row(f"{name} {kind} {figure}", round(share, 3), "share", None, None, None, True))
    finally:
        await sandbox.close()
    return rows


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models" / "tiny"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32).eval()
    trained = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    rows = asyncio.run(measure("base", base, tokenizer)) + asyncio.run(measure("midtrained", trained, tokenizer))
    if len(sys.argv) > 1:
        print(json.dumps([[row.metric, row.value] for row in rows], indent=1))
    else:
        report("model_quality", rows)


if __name__ == "__main__":
    main()
