"""The functions that the simulated team writes: each template in two idioms, with its bugs and test cases.

Slots: X a list, N a number, S a string, A the accumulator, V the loop variable. `bugs` maps a line of the loop (from 0)
to wrong versions of it; every one of them fails the cases."""

from collections.abc import Mapping
from dataclasses import dataclass

LISTS = ("xs", "items", "nums", "rows", "vals", "data", "marks", "bits")
NUMBERS = ("n", "k", "m", "top", "lim", "cut", "cap", "num")
STRINGS = ("s", "text", "word", "line", "name", "msg", "key", "tag")


@dataclass(frozen=True)
class Template:
    verbs: tuple[str, ...]
    description: str
    arguments: tuple[tuple[str, str], ...]
    returns: str
    expression: str
    loop: tuple[str, ...]
    bugs: Mapping[int, tuple[str, ...]]
    cases: tuple[tuple[str, str], ...]  # argument text, expected repr


_LIST = (("X", "list"),)

TEMPLATES = (
    Template(
        verbs=("total", "add_all", "sum_of"),
        description="sum of {X}",
        arguments=_LIST,
        returns="int",
        expression="sum({X})",
        loop=("{A} = 0", "for {V} in {X}:", "    {A} += {V}", "return {A}"),
        bugs={2: ("    {A} -= {V}", "    {A} = {V}"), 0: ("{A} = 1",), 3: ("return {V}",)},
        cases=(("[1, 2, 3]", "6"), ("[4, 5]", "9")),
    ),
    Template(
        verbs=("count_big", "num_over", "big"),
        description="how many {X} over {N}",
        arguments=(("X", "list"), ("N", "int")),
        returns="int",
        expression="sum({V} > {N} for {V} in {X})",
        loop=("{A} = 0", "for {V} in {X}:", "    if {V} > {N}:", "        {A} += 1", "return {A}"),
        bugs={2: ("    if {V} < {N}:", "    if {V} == {N}:"), 3: ("        {A} += {V}",), 0: ("{A} = 1",)},
        cases=(("[1, 5, 9, 7], 4", "3"), ("[3, 3], 1", "2")),
    ),
    Template(
        verbs=("biggest", "max_of", "top_of"),
        description="largest of {X}",
        arguments=_LIST,
        returns="int",
        expression="max({X})",
        loop=("{A} = {X}[0]", "for {V} in {X}:", "    if {V} > {A}:", "        {A} = {V}", "return {A}"),
        bugs={2: ("    if {V} < {A}:",), 3: ("        {A} += {V}",), 4: ("return {V}",)},
        cases=(("[1, 7, 2]", "7"), ("[5, 3, 4]", "5")),
    ),
    Template(
        verbs=("smallest", "min_of", "low"),
        description="smallest of {X}",
        arguments=_LIST,
        returns="int",
        expression="min({X})",
        loop=("{A} = {X}[0]", "for {V} in {X}:", "    if {V} < {A}:", "        {A} = {V}", "return {A}"),
        bugs={2: ("    if {V} > {A}:",), 3: ("        {A} += {V}",), 4: ("return {V}",)},
        cases=(("[4, 7, 2, 3]", "2"), ("[5, 3, 4]", "3")),
    ),
    Template(
        verbs=("sum_to", "tri", "upto"),
        description="sum of 1 to {N}",
        arguments=(("N", "int"),),
        returns="int",
        expression="sum(range({N} + 1))",
        loop=("{A} = 0", "for {V} in range({N} + 1):", "    {A} += {V}", "return {A}"),
        bugs={
            1: ("for {V} in range({N}):", "for {V} in range({N} - 1):"),
            2: ("    {A} -= {V}", "    {A} *= {V}"),
            3: ("return {V}",),
        },
        cases=(("4", "10"), ("5", "15")),
    ),
    Template(
        verbs=("evens", "only_even", "even_of"),
        description="even {X}",
        arguments=_LIST,
        returns="list",
        expression="[{V} for {V} in {X} if {V} % 2 == 0]",
        loop=("{A} = []", "for {V} in {X}:", "    if {V} % 2 == 0:", "        {A}.append({V})", "return {A}"),
        bugs={2: ("    if {V} % 2 == 1:", "    if {V} % 3 == 0:"), 4: ("return {V}",)},
        cases=(("[1, 2, 4, 6]", "[2, 4, 6]"), ("[8, 3]", "[8]")),
    ),
    Template(
        verbs=("double", "twice", "dbl"),
        description="double each of {X}",
        arguments=_LIST,
        returns="list",
        expression="[{V} * 2 for {V} in {X}]",
        loop=("{A} = []", "for {V} in {X}:", "    {A}.append({V} * 2)", "return {A}"),
        bugs={2: ("    {A}.append({V} + 2)", "    {A}.append({V})"), 3: ("return {V}",)},
        cases=(("[1, 3]", "[2, 6]"), ("[4, 5, 6]", "[8, 10, 12]")),
    ),
    Template(
        verbs=("has", "contains", "is_in"),
        description="is {N} in {X}",
        arguments=(("X", "list"), ("N", "int")),
        returns="bool",
        expression="{N} in {X}",
        loop=("for {V} in {X}:", "    if {V} == {N}:", "        return True", "return False"),
        bugs={1: ("    if {V} > {N}:", "    if {V} != {N}:"), 2: ("        return False",), 3: ("return True",)},
        cases=(("[1, 5], 5", "True"), ("[3, 9], 2", "False"), ("[4], 4", "True")),
    ),
    Template(
        verbs=("rev", "backward", "flip"),
        description="reverse {S}",
        arguments=(("S", "str"),),
        returns="str",
        expression="{S}[::-1]",
        loop=('{A} = ""', "for {V} in {S}:", "    {A} = {V} + {A}", "return {A}"),
        bugs={2: ("    {A} = {A} + {V}", "    {A} = {V}"), 3: ("return {S}", "return {V}")},
        cases=(("'abc'", "'cba'"), ("'xy'", "'yx'")),
    ),
    Template(
        verbs=("prod", "product", "mul_all"),
        description="product of {X}",
        arguments=_LIST,
        returns="int",
        expression="math.prod({X})",
        loop=("{A} = 1", "for {V} in {X}:", "    {A} *= {V}", "return {A}"),
        bugs={0: ("{A} = 0",), 2: ("    {A} += {V}", "    {A} = {V}"), 3: ("return {V}",)},
        cases=(("[2, 3]", "6"), ("[4, 1, 5]", "20")),
    ),
    Template(
        verbs=("any_neg", "has_neg", "below"),
        description="any negative in {X}",
        arguments=_LIST,
        returns="bool",
        expression="any({V} < 0 for {V} in {X})",
        loop=("for {V} in {X}:", "    if {V} < 0:", "        return True", "return False"),
        bugs={1: ("    if {V} > 0:", "    if {V} == 0:"), 2: ("        return False",), 3: ("return True",)},
        cases=(("[1, -5]", "True"), ("[3, 9]", "False")),
    ),
    Template(
        verbs=("size", "count", "length"),
        description="length of {X}",
        arguments=_LIST,
        returns="int",
        expression="len({X})",
        loop=("{A} = 0", "for {V} in {X}:", "    {A} += 1", "return {A}"),
        bugs={0: ("{A} = 1",), 2: ("    {A} += {V}", "    {A} -= 1"), 3: ("return {V}",)},
        cases=(("[3, 1, 5]", "3"), ("[7, 9]", "2")),
    ),
)
