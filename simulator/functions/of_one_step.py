"""Functions of one step, which every beginner writes."""

from simulator.functions.function import Function

_SIGNS = ((7,), (-3,), (0,), (-12,), (1,))
_PAIRS = ((7, 2), (3, 3), (12, 4), (2, 5), (10, 1))
_LISTS = (([3, 1, 2],), ([],), ([5],), ([4, -4, 9],))
_WORDS = (([],), (["a"],), (["pear", "fig"],), (["ant", "be", "arc"],))

OF_ONE_STEP = (
    Function(("double", "two_times"), "N", ("{0} times two", "the double of {0}"), lambda n: 2 * n),
    Function(("half", "halved"), "N", ("half of {0}", "{0} divided by two"), lambda n: n / 2),
    Function(("opposite", "negate"), "N", ("{0} with its sign changed", "the negative of {0}"), lambda n: -n),
    Function(("increment", "plus_one"), "N", ("{0} plus one", "the number after {0}"), lambda n: n + 1),
    Function(("decrement", "minus_one"), "N", ("{0} minus one", "the number before {0}"), lambda n: n - 1),
    Function(
        ("is_negative", "below_zero"),
        "N",
        ("True if {0} is negative, else False", "whether {0} is less than zero"),
        lambda n: n < 0,
        _SIGNS,
    ),
    Function(
        ("above_zero", "is_greater_than_zero"),
        "N",
        ("True if {0} is greater than zero, else False", "whether the number {0} is positive"),
        lambda n: n > 0,
        _SIGNS,
    ),
    Function(
        ("is_zero", "zero"),
        "N",
        ("True if {0} is zero, else False", "whether {0} equals 0"),
        lambda n: n == 0,
        ((0,), (3,), (-1,), (10,)),
    ),
    Function(("as_text", "to_string"), "N", ("{0} as a string", "the number {0} converted to a string"), str),
    Function(("add", "sum_of_two"), "NM", ("the sum of {0} and {1}", "{0} plus {1}"), lambda n, m: n + m),
    Function(("subtract", "minus"), "NM", ("{0} minus {1}", "{1} subtracted from {0}"), lambda n, m: n - m),
    Function(("multiply", "product_of"), "NM", ("{0} times {1}", "the product of {0} and {1}"), lambda n, m: n * m),
    Function(("divide", "quotient"), "NM", ("{0} divided by {1}", "the quotient of {0} and {1}"), lambda n, m: n / m),
    Function(
        ("is_equal", "equal"),
        "NM",
        ("True if {0} equals {1}, else False", "whether {0} and {1} are the same"),
        lambda n, m: n == m,
        _PAIRS,
    ),
    Function(
        ("is_larger", "exceeds"),
        "NM",
        ("True if {0} is greater than {1}, else False", "whether {0} is more than {1}"),
        lambda n, m: n > m,
        _PAIRS,
    ),
    Function(
        ("is_smaller", "is_under"),
        "NM",
        ("True if {0} is less than {1}, else False", "whether {0} is below {1}"),
        lambda n, m: n < m,
        _PAIRS,
    ),
    Function(
        ("is_empty", "has_none"),
        "X",
        ("True if the list {0} is empty, else False", "whether {0} has no items"),
        lambda xs: not xs,
        _LISTS,
    ),
    Function(
        ("has_items", "is_filled"),
        "X",
        ("True if the list {0} has any item, else False", "whether the list {0} is not empty"),
        lambda xs: len(xs) > 0,
        _LISTS,
    ),
    Function(
        ("with_item", "append_to"),
        "XM",
        ("the list {0} with {1} added at the end", "a list of the items of {0} followed by {1}"),
        lambda xs, m: [*xs, m],
    ),
    Function(
        ("capitalized", "capital_first"),
        "S",
        ("the string {0} with its first letter in upper case", "{0} capitalized"),
        lambda s: s[:1].upper() + s[1:],
        (("hello",), ("level",), ("a",), ("zebra",)),
    ),
    Function(
        ("trimmed", "strip_spaces"),
        "S",
        ("the string {0} without spaces at its beginning and end", "{0} with the spaces around it removed"),
        str.strip,
        ((" a ",), ("b",), ("  c d",), ("e  ",)),
    ),
    Function(
        ("said_twice", "double_text"),
        "S",
        ("the string {0} written twice", "{0} followed by itself"),
        lambda s: s + s,
    ),
    Function(
        ("is_blank", "no_text"),
        "S",
        ("True if the string {0} is empty, else False", "whether {0} has no characters"),
        lambda s: s == "",
        (("",), ("a",), ("hello",), (" ",)),
    ),
    Function(
        ("glued", "concatenate"),
        "ST",
        ("the string {0} followed by the string {1}", "the strings {0} and {1} joined together"),
        lambda s, t: s + t,
    ),
    Function(
        ("same_text", "texts_equal"),
        "ST",
        ("True if the strings {0} and {1} are equal, else False", "whether {0} and {1} are the same string"),
        lambda s, t: s == t,
        (("a", "a"), ("a", "b"), ("level", "level"), ("cup", "CUP")),
    ),
    Function(
        ("ends", "has_ending"),
        "ST",
        ("True if the string {0} ends with {1}, else False", "whether {0} ends with the string {1}"),
        lambda s, t: s.endswith(t),
        (("banana", "na"), ("hello", "h"), ("cup", "up"), ("abc", "cba")),
    ),
    Function(
        ("sentence", "join_words"),
        "W",
        ("the strings in {0} joined with spaces", "one string of the words in {0} with spaces between"),
        " ".join,
    ),
    Function(
        ("number_of_words", "words_in_list"),
        "W",
        ("the number of strings in the list {0}", "how many strings are in {0}"),
        len,
        _WORDS,
    ),
    Function(
        ("first_word", "opening_word"),
        "W",
        ("the first string in the list {0}", "the first item of {0}"),
        lambda words: words[0],
    ),
    Function(
        ("last_word", "final_word"),
        "W",
        ("the last string in the list {0}", "the last item of {0}"),
        lambda words: words[-1],
    ),
    Function(
        ("sorted_words", "in_alphabet"),
        "W",
        ("the strings in {0} sorted", "the list of strings {0} in alphabetical order"),
        sorted,
    ),
)
