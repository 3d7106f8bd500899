"""Judges answers to questions of `reasoning-gym` by its own scorers, in a sandbox of their own.

Several of these scorers hand the answer to `eval`, and sympy's parser does too: a model's text would run as a program
where the scorer runs. So none runs in our process, and what such a scorer is given must be a plain expression, since a
program could also write its own score."""

import ast
import json
import sys
from pathlib import Path

from environments.errors import NoVerdict, VerifierOutOfTime
from environments.sandboxes.sandbox import Limits, Sandboxes, SandboxSpec
from environments.tasks.rewards import REWARD, reward_of
from environments.tasks.task import JudgedAnswer

# Of reasoning-gym 0.1.25: those whose scorer evaluates the answer.
EVALUATING = frozenset(
    {
        *(
            "binary_matrix",
            "composite",
            "countdown",
            "intermediate_integration",
            "n_queens",
            "polynomial_multiplication",
        ),
        *("puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
    }
)
_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln"),
        *("sqrt", "Abs", "erf", "Rational", "Integer"),
    }
)
_PLAIN = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Name, ast.Call, ast.Load),
    *(ast.operator, ast.unaryop),
)
_SCRIPT = """
import json, sys, tokenize
sys.path.append(sys.argv[1])
import reasoning_gym
made_by, index, answer = json.load(sys.stdin)
name, size, seed, config = json.loads(made_by)
dataset = reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
entry = dataset[index]
try:
    score = float(dataset.score_answer(entry["answer"] if answer is None else answer, entry))
except (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, SyntaxError, RecursionError),
    *(MemoryError, tokenize.TokenError),
):
    score = 0.0  # a scorer that cannot read an answer
print("score", json.dumps(score))
"""


async def score(answer: JudgedAnswer, given: str | None, sandboxes: Sandboxes, timeout_seconds: float) -> float:
    """Return the scorer's reward, between 0 and 1; 0 for what it cannot read. None is the dataset's own answer.

    Raises VerifierOutOfTime, and NoVerdict where the scorer does not come to its end: an answer can bring about both,
    such as a number too large to be written down."""
    name = json.loads(answer.made_by)[0]
    if given is not None and name in EVALUATING and not is_plain(given):
        return 0.0
    packages = _packages()
    async with await sandboxes.open(_spec(packages)) as sandbox:
        result = await sandbox.run(
            (f"{sys.base_prefix}/bin/python{sys.version_info.major}", "-I", "-c", _SCRIPT, str(packages)),
            timeout_seconds=timeout_seconds,
            stdin=json.dumps([answer.made_by, answer.index, given and given.strip()]).encode(),
        )
    if result.timed_out:
        raise VerifierOutOfTime(f"the scorer of {name} took more than {timeout_seconds:g} s")
    last = result.stdout.decode(errors="replace").strip().rpartition("\n")[2]
    if result.exit_code != 0 or not last.startswith("score "):
        said = result.stderr[-1_000:].decode(errors="replace").strip()
        raise NoVerdict(f"the scorer of {name} ended with exit code {result.exit_code}: {said}")
    return reward_of({REWARD: float(json.loads(last.removeprefix("score ")))})


def is_plain(given: str) -> bool:
    """Say whether an answer is an expression of numbers, texts, lists, symbols and functions of mathematics.

    What no Python can read (`1 2 3`, `x!`) is plain where it calls nothing: sympy reads more than Python does. Nor may
    a text in it, which sympy's functions evaluate in their turn: `sin("x.y()")` calls `x.y`."""
    try:
        tree = ast.parse(given.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _calls_nothing(given)
    return all(_is_plain(node) for node in ast.walk(tree))


def _calls_nothing(text: str) -> bool:
    return "(" not in text and "__" not in text


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.Name):
        return "_" not in node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return isinstance(node.value, str) and _calls_nothing(node.value)
    return isinstance(node, _PLAIN)


def _packages() -> Path:
    import reasoning_gym  # many others come with it

    return Path(reasoning_gym.__file__).parents[1]


def _spec(packages: Path) -> SandboxSpec:
    """Return a sandbox that has this Python and its packages, read-only, and no network."""
    base = Path(sys.base_prefix)
    folders = {str(folder): folder for folder in (base, packages) if not folder.is_relative_to("/usr")}
    return SandboxSpec(folders=folders, limits=Limits(memory_bytes=2 << 30))
