"""Functions of strings, of numbers and of lists of strings."""

import math

from simulator.functions.function import Function

OF_STRINGS = (
    Function(("reverse", "mirrored"), "S", ("the string {0} reversed", "{0} written backwards"), lambda s: s[::-1]),
    Function(("quiet", "to_lower"), "S", ("the string {0} in lower case", "{0} in small letters"), str.lower),
    Function(
        ("characters", "text_length"),
        "S",
        ("the number of characters in the string {0}", "how long the string {0} is"),
        len,
    ),
    Function(
        ("split_words", "word_list"),
        "S",
        ("a list of the words in the string {0}", "the words of {0} as a list"),
        str.split,
    ),
    Function(
        ("word_count", "count_words"),
        "S",
        ("the number of words in the string {0}", "how many words are in {0}"),
        lambda s: len(s.split()),
    ),
    Function(
        ("is_palindrome", "reads_same"),
        "S",
        ("True if the string {0} is a palindrome, else False", "whether {0} reads the same backwards"),
        lambda s: s == s[::-1],
        (("level",), ("hello",), ("noon",), ("ab",), ("x",)),
    ),
    Function(
        ("first_letter", "initial"),
        "S",
        ("the first character of the string {0}", "the first letter of {0}"),
        lambda s: s[0],
    ),
    Function(
        ("last_letter", "ending"),
        "S",
        ("the last character of the string {0}", "the last letter of {0}"),
        lambda s: s[-1],
    ),
    Function(
        ("no_spaces", "squeeze"),
        "S",
        ("the string {0} without spaces", "{0} with all spaces removed"),
        lambda s: s.replace(" ", ""),
    ),
    Function(
        ("distinct_letters", "count_distinct"),
        "S",
        ("the number of different characters in the string {0}", "how many distinct characters {0} has"),
        lambda s: len(set(s)),
    ),
    Function(
        ("repeat", "repeated"),
        "SM",
        ("the string {0} repeated {1} times", "{1} copies of the string {0} joined together"),
        lambda s, m: s * m,
    ),
    Function(
        ("includes", "has_part"),
        "ST",
        ("True if the string {1} is in the string {0}, else False", "whether {0} contains the string {1}"),
        lambda s, t: t in s,
    ),
)

OF_NUMBERS = (
    Function(("factorial", "fact"), "N", ("the factorial of {0}", "the product of 1 to {0}"), math.factorial),
    Function(
        ("is_even", "even"), "N", ("True if {0} is even, else False", "whether {0} is even"), lambda n: n % 2 == 0
    ),
    Function(("is_odd", "odd"), "N", ("True if {0} is odd, else False", "whether {0} is odd"), lambda n: n % 2 == 1),
    Function(("square", "squared"), "N", ("the square of {0}", "{0} times itself"), lambda n: n * n),
    Function(("cube", "cubed"), "N", ("the cube of {0}", "{0} to the power of three"), lambda n: n**3),
    Function(
        ("sum_to", "sum_up_to"),
        "N",
        ("the sum of the numbers from 1 to {0}", "the total of all whole numbers from 1 up to {0}"),
        lambda n: n * (n + 1) // 2,
    ),
    Function(
        ("is_prime", "prime"),
        "N",
        ("True if {0} is a prime number, else False", "whether {0} is prime"),
        lambda n: n > 1 and all(n % d for d in range(2, n)),
    ),
    Function(
        ("up_to", "count_up"),
        "N",
        ("a list of the numbers from 1 to {0}", "the whole numbers from 1 up to {0}, as a list"),
        lambda n: list(range(1, n + 1)),
    ),
    Function(
        ("magnitude", "absolute"),
        "N",
        ("the absolute value of {0}", "{0} without its sign"),
        abs,
        ((7,), (-3,), (0,), (-12,)),
    ),
    Function(("power", "raise_to"), "NM", ("{0} to the power of {1}", "{0} raised to {1}"), lambda n, m: n**m),
    Function(("larger", "bigger_of"), "NM", ("the larger of {0} and {1}", "the maximum of {0} and {1}"), max),
    Function(
        ("remainder", "rest_of_division"),
        "NM",
        ("the remainder of {0} divided by {1}", "what is left over when {0} is divided by {1}"),
        lambda n, m: n % m,
    ),
    Function(
        ("divides", "is_multiple"),
        "NM",
        ("True if {0} is divisible by {1}, else False", "whether {0} is a multiple of {1}"),
        lambda n, m: n % m == 0,
    ),
    Function(
        ("middle", "halfway"),
        "NM",
        ("the average of {0} and {1}", "the mean of the numbers {0} and {1}"),
        lambda n, m: (n + m) / 2,
    ),
)

OF_WORDS = (
    Function(
        ("total_length", "all_characters"),
        "W",
        ("the total length of the strings in {0}", "the sum of the lengths of the strings in the list {0}"),
        lambda words: sum(map(len, words)),
    ),
    Function(
        ("lengths", "word_lengths"),
        "W",
        ("a list of the lengths of the strings in {0}", "the length of each string in {0}, as a list"),
        lambda words: [len(word) for word in words],
    ),
)
