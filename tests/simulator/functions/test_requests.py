"""The functions that users want: many, all different, told apart by their tests, and some never taught."""

import asyncio
import random
import re
from collections import Counter
from itertools import islice

import pytest

from simulator.functions.function import POOLS, Function
from simulator.functions.subject import (
    FUNCTIONS,
    WORDINGS,
    Functions,
    Request,
    code_of,
    of_split,
    sample,
    split_of,
    word,
)
from simulator.tasks.sandbox import ForkServer

ENOUGH = 45
by_identity = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.identity)


def passing(codes: list[tuple[str, tuple[tuple[str, str], ...]]]) -> list[bool]:
    async def run() -> list[bool]:
        sandbox = ForkServer()
        try:
            return [(await sandbox.run(code, tests)).all_passed for code, tests in codes]
        finally:
            await sandbox.close()

    return asyncio.run(run())


def test_there_are_enough_and_no_name_stands_for_two() -> None:
    assert len(FUNCTIONS) >= ENOUGH
    names = Counter(name for function in FUNCTIONS for name in function.names)
    assert set(names.values()) == {1}
    results = {function.tests("f") for function in FUNCTIONS}
    assert len(results) == len(FUNCTIONS), "no two do the same"


@by_identity
def test_a_function_has_tests_that_no_constant_passes(function: Function) -> None:
    tests = function.tests(function.names[-1])
    assert len({expression for expression, _ in tests}) == len(tests) >= 4
    assert len({expected for _, expected in tests}) >= 2
    assert all(expression.startswith(function.names[-1] + "(") for expression, _ in tests)


@by_identity
def test_a_function_is_worded_in_several_ways_that_name_its_arguments(function: Function) -> None:
    assert len(function.names) >= 2
    assert len(set(function.wanted)) == len(function.wanted) >= 2
    for wanted in function.wanted:
        assert {int(slot) for slot in re.findall(r"\{(\d)\}", wanted)} == set(range(len(function.arguments)))
    request = word(function, random.Random(1))
    assert any(f"`{name}(" in request.text for name in function.names)
    assert not re.search(r"[{}]", request.text)


def test_what_returns_the_expected_values_passes_and_a_neighbour_does_not() -> None:
    """Each function's own results pass its tests; those of the next function of the same arguments do not."""
    codes, expected = [], []
    for function in FUNCTIONS:
        own = dict(function.tests("f"))
        others = [dict(each.tests("f")) for each in FUNCTIONS if each is not function and not each.cases]
        near = next((each for each in others if each.keys() == own.keys() and each != own), None)
        for values, passes in ((own, True), (near, False)):
            if values is not None:
                code = "\n".join(f"known[{call[1:]!r}] = {value}" for call, value in values.items())
                code = f"known = {{}}\n{code}\ndef f(*given):\n    return known[repr(given).replace(',)', ')')]"
                codes.append((code, function.tests("f")))
                expected.append(passes)
    assert passing(codes) == expected
    assert expected.count(False) > 40


def test_functions_that_examine_are_never_taught() -> None:
    taught, held_out = of_split("taught"), of_split("held_out")
    assert len(taught) >= 25
    assert len(held_out) >= 20
    assert not {function.identity for function in taught} & {function.identity for function in held_out}
    for seed in range(3):
        assert {split_of(_named(request.function)) for request in sample("taught", 300, f"{seed}")} == {"taught"}
        assert {split_of(_named(request.function)) for request in sample("held_out", 300, f"{seed}")} == {"held_out"}


def _named(identity: str) -> Function:
    return next(function for function in FUNCTIONS if function.identity == identity)


def test_requests_are_many_and_the_same_for_the_same_seed() -> None:
    first = sample("taught", 1000, "a")
    assert sample("taught", 1000, "a") == first != sample("taught", 1000, "b")
    assert len({request.text for request in first}) > 700
    often = Counter(request.function for request in first)
    assert max(often.values()) - min(often.values()) <= 1, "each function as often as another"
    assert {request.text.split("`")[0] for request in first} == {wording.split("`")[0] for wording in WORDINGS}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\ndef f(x):\n    return x\n```", "def f(x):\n    return x"),
        (
            "Here it is:\n\n```\ndef f(x):\n    return x\n```\nIt returns x.\n```python\nf(1)\n```",
            "def f(x):\n    return x",
        ),
        ("```Python\ndef f(x):\n    return x", "def f(x):\n    return x"),
        ("def f(x):\n    return x\n", "def f(x):\n    return x"),
        ("I cannot.", "I cannot."),
        ("", ""),
    ],
)
def test_code_is_what_somebody_would_copy(answer: str, code: str) -> None:
    assert code_of(answer) == code


def test_a_user_takes_what_passes_the_tests() -> None:
    async def run() -> list[bool]:
        sandbox = ForkServer()
        subject = Functions(sandbox)
        try:
            exercise = next(each for each in subject.held_out(200, 0) if each.kind == "cube")
            (_, text) = exercise.messages[-1]
            name, argument = re.findall(r"`(\w+)\((\w+)\)`", text)[-1]
            assert argument in POOLS["N"]
            right = f"def {name}(x):\n    return x ** 3"
            answers = [
                right,
                f"```python\n{right}",
                f"```python\n{right}\n```\nIt cubes.",
                right.replace("3", "2"),
                "",
                text,
            ]
            return [await exercise.right(answer) for answer in answers]
        finally:
            await sandbox.close()

    assert asyncio.run(run()) == [True, True, True, False, False, False]


def test_teaching_does_not_run_out_and_differs_by_seed() -> None:
    subject = Functions(ForkServer())
    first, other = (list(islice(subject.taught(seed), 200)) for seed in (0, 1))
    assert len({each.kind for each in first}) == len(of_split("taught"))
    assert [each.messages for each in first] != [each.messages for each in other]
    assert not {each.kind for each in first} & {each.kind for each in subject.held_out(200, 0)}
    assert isinstance(sample("taught", 1, "x")[0], Request)
