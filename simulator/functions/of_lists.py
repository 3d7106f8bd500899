"""Functions of lists of numbers."""

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
        ("evens", "only_even"),
        "X",
        ("a list of the even numbers in {0}", "the even numbers of {0} as a list"),
        lambda xs: [x for x in xs if x % 2 == 0],
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
    Function(("first", "head"), "X", ("the first number of the list {0}", "the first item of {0}"), lambda xs: xs[0]),
    Function(("last", "final"), "X", ("the last number of the list {0}", "the last item of {0}"), lambda xs: xs[-1]),
    Function(
        ("sum_of_squares", "squared_total"),
        "X",
        ("the sum of the squares of the numbers in {0}", "the total of the squared numbers of {0}"),
        lambda xs: sum(x * x for x in xs),
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
        ("add_to_each", "shift_all"),
        "XM",
        ("a list with {1} added to each number in {0}", "each number of {0} plus {1}, as a list"),
        lambda xs, m: [x + m for x in xs],
    ),
    Function(
        ("multiples", "divisible"),
        "XM",
        ("a list of the numbers in {0} that are divisible by {1}", "the multiples of {1} in {0}, as a list"),
        lambda xs, m: [x for x in xs if x % m == 0],
    ),
)
