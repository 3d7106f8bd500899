"""Functions of lists of numbers."""

import math

from simulator.functions.function import Function

OF_LISTS = (
    Function(("total", "sum_all"), "X", ("the sum of the list {0}", "the total of all numbers in {0}"), sum),
    Function(("largest", "biggest"), "X", ("the largest number in {0}", "the maximum of the list {0}"), max),
    Function(("smallest", "lowest"), "X", ("the smallest number in {0}", "the minimum of the list {0}"), min),
    Function(("size", "how_many"), "X", ("the length of the list {0}", "how many numbers are in {0}"), len),
    Function(
        ("average", "mean"),
        "X",
        ("the average of the numbers in {0}", "the mean of the list {0}"),
        lambda xs: sum(xs) / len(xs),
    ),
    Function(
        ("product", "multiply_all"),
        "X",
        ("the product of the numbers in {0}", "all numbers in {0} multiplied together"),
        math.prod,
    ),
    Function(
        ("spread", "span"),
        "X",
        (
            "the difference between the largest and the smallest number in {0}",
            "the maximum of {0} minus the minimum of {0}",
        ),
        lambda xs: max(xs) - min(xs),
    ),
    Function(
        ("evens", "only_even"),
        "X",
        ("a list of the even numbers in {0}", "the even numbers of {0} as a list"),
        lambda xs: [x for x in xs if x % 2 == 0],
    ),
    Function(
        ("odds", "only_odd"),
        "X",
        ("a list of the odd numbers in {0}", "the odd numbers of {0} as a list"),
        lambda xs: [x for x in xs if x % 2],
    ),
    Function(
        ("positives", "only_positive"),
        "X",
        ("a list of the positive numbers in {0}", "the numbers in {0} that are greater than zero, as a list"),
        lambda xs: [x for x in xs if x > 0],
    ),
    Function(
        ("doubled", "twice"),
        "X",
        ("a list with each number in {0} doubled", "each number of {0} times two, as a list"),
        lambda xs: [2 * x for x in xs],
    ),
    Function(
        ("squares", "square_all"),
        "X",
        ("a list of the squares of the numbers in {0}", "each number of {0} squared, as a list"),
        lambda xs: [x * x for x in xs],
    ),
    Function(
        ("backwards", "flip"),
        "X",
        ("the list {0} in reverse order", "a reversed copy of the list {0}"),
        lambda xs: xs[::-1],
    ),
    Function(
        ("ascending", "sort_up"),
        "X",
        ("the list {0} sorted in ascending order", "the numbers of {0} from the smallest to the largest, as a list"),
        sorted,
    ),
    Function(
        ("descending", "sort_down"),
        "X",
        ("the list {0} sorted in descending order", "the numbers of {0} from the largest to the smallest, as a list"),
        lambda xs: sorted(xs, reverse=True),
    ),
    Function(
        ("distinct", "without_repeats"),
        "X",
        (
            "a list of the numbers in {0} without duplicates, in their order",
            "the list {0} with repeated numbers removed, keeping the order",
        ),
        lambda xs: list(dict.fromkeys(xs)),
    ),
    Function(("first", "head"), "X", ("the first number of the list {0}", "the first item of {0}"), lambda xs: xs[0]),
    Function(("last", "final"), "X", ("the last number of the list {0}", "the last item of {0}"), lambda xs: xs[-1]),
    Function(
        ("sum_of_squares", "squared_total"),
        "X",
        ("the sum of the squares of the numbers in {0}", "the total of the squared numbers of {0}"),
        lambda xs: sum(x * x for x in xs),
    ),
    Function(
        ("sum_even", "even_total"),
        "X",
        ("the sum of the even numbers in {0}", "the total of all even numbers of the list {0}"),
        lambda xs: sum(x for x in xs if x % 2 == 0),
    ),
    Function(
        ("count_negative", "negatives"),
        "X",
        ("how many numbers in {0} are negative", "the number of negative numbers in {0}"),
        lambda xs: sum(x < 0 for x in xs),
    ),
    Function(
        ("count_even", "how_many_even"),
        "X",
        ("how many numbers in {0} are even", "the number of even numbers in {0}"),
        lambda xs: sum(x % 2 == 0 for x in xs),
    ),
    Function(
        ("magnitudes", "abs_all"),
        "X",
        ("a list of the absolute values of the numbers in {0}", "the absolute value of each number in {0}, as a list"),
        lambda xs: [abs(x) for x in xs],
    ),
    Function(
        ("all_positive", "is_positive"),
        "X",
        ("True if all numbers in {0} are positive, else False", "whether every number in {0} is greater than zero"),
        lambda xs: all(x > 0 for x in xs),
    ),
    Function(
        ("has_duplicates", "repeats"),
        "X",
        ("True if any number occurs twice in {0}, else False", "whether the list {0} has duplicates"),
        lambda xs: len(set(xs)) < len(xs),
    ),
    Function(
        ("is_sorted", "in_order"),
        "X",
        (
            "True if the list {0} is sorted in ascending order, else False",
            "whether the numbers of {0} are in ascending order",
        ),
        lambda xs: xs == sorted(xs),
        (([1, 2, 3],), ([3, 1, 2],), ([5],), ([1, 1, 4],), ([2, 9, 8],)),
    ),
    Function(
        ("rest", "tail"),
        "X",
        ("the list {0} without its first item", "a list of all items of {0} but the first"),
        lambda xs: xs[1:],
    ),
    Function(
        ("every_second", "alternate"),
        "X",
        ("a list of every second item of {0}, beginning with the first", "the items of {0} at even indices, as a list"),
        lambda xs: xs[::2],
    ),
    Function(
        ("negated", "flip_signs"),
        "X",
        ("a list with the sign of each number in {0} changed", "a list of the numbers of {0}, each negated"),
        lambda xs: [-x for x in xs],
    ),
    Function(
        ("as_strings", "to_text"),
        "X",
        ("a list of the numbers in {0} as strings", "each number of {0} converted to a string, as a list"),
        lambda xs: [str(x) for x in xs],
    ),
    Function(
        ("count_of", "occurrences"),
        "XM",
        ("how often {1} occurs in the list {0}", "the number of times that {1} is in {0}"),
        lambda xs, m: xs.count(m),
    ),
    Function(
        ("contains", "has"),
        "XM",
        ("True if {1} is in the list {0}, else False", "whether the list {0} contains {1}"),
        lambda xs, m: m in xs,
    ),
    Function(
        ("above", "greater_than"),
        "XM",
        ("a list of the numbers in {0} greater than {1}", "the numbers of {0} that are above {1}, as a list"),
        lambda xs, m: [x for x in xs if x > m],
    ),
    Function(
        ("count_above", "how_many_over"),
        "XM",
        ("how many numbers in {0} are greater than {1}", "the number of items of {0} above {1}"),
        lambda xs, m: sum(x > m for x in xs),
    ),
    Function(
        ("add_to_each", "shift_all"),
        "XM",
        ("a list with {1} added to each number in {0}", "each number of {0} plus {1}, as a list"),
        lambda xs, m: [x + m for x in xs],
    ),
    Function(
        ("scale", "times"),
        "XM",
        ("a list with each number in {0} multiplied by {1}", "each number of {0} times {1}, as a list"),
        lambda xs, m: [x * m for x in xs],
    ),
    Function(
        ("take", "first_items"),
        "XM",
        ("the first {1} items of the list {0}", "a list of the first {1} numbers of {0}"),
        lambda xs, m: xs[:m],
    ),
    Function(
        ("without", "remove_all"),
        "XM",
        ("the list {0} without any item equal to {1}", "a list of the items of {0} that are not {1}"),
        lambda xs, m: [x for x in xs if x != m],
    ),
    Function(
        ("multiples", "divisible"),
        "XM",
        ("a list of the numbers in {0} that are divisible by {1}", "the multiples of {1} in {0}, as a list"),
        lambda xs, m: [x for x in xs if x % m == 0],
    ),
    Function(
        ("joined", "concat"),
        "XY",
        ("a list of the items of {0} followed by those of {1}", "the lists {0} and {1} joined into one"),
        lambda xs, ys: xs + ys,
    ),
)
