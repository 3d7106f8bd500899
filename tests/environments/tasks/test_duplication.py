"""Functions that were written again are found under other names, and those that only look alike are not."""

import textwrap

import pytest

from environments.tasks.judging.duplication import duplicates

HELPER = textwrap.dedent(
    '''
    def slug(title, limit=40):
        """Return a title as a part of an address."""
        words = [word.lower() for word in title.split() if word.isalnum()]
        joined = "-".join(words)
        if len(joined) > limit:
            joined = joined[:limit].rstrip("-")
        return joined
    '''
)
RENAMED = textwrap.dedent(
    """
    def to_path(name: str, most: int = 40) -> str:
        parts: list[str] = [part.lower() for part in name.split() if part.isalnum()]
        text = "-".join(parts)
        if len(text) > most:
            text = text[:most].rstrip("-")
        return text
    """
)
CALLING = textwrap.dedent(
    """
    from text import slug

    def to_path(name, folder):
        path = folder / slug(name)
        path.mkdir(parents=True, exist_ok=True)
        return path
    """
)


def test_a_copy_under_other_names_is_found() -> None:
    (found,) = duplicates({"text.py": HELPER}, {"text.py": HELPER, "pages.py": RENAMED})
    assert (found.written, found.there, found.similarity) == ("pages.py:to_path", "text.py:slug", 1.0)


def test_a_copy_with_a_small_change_is_found() -> None:
    changed = RENAMED.replace("40", "60").replace('.rstrip("-")', ".strip()")
    (found,) = duplicates({"text.py": HELPER}, {"text.py": HELPER, "pages.py": changed})
    assert 0.85 <= found.similarity < 1


def test_who_calls_the_helper_repeats_nothing() -> None:
    assert not duplicates({"text.py": HELPER}, {"text.py": HELPER, "pages.py": CALLING})


def test_a_method_that_repeats_a_function_is_found() -> None:
    method = "class Page:\n    @staticmethod\n" + textwrap.indent(RENAMED.strip(), "    ")
    (found,) = duplicates({"text.py": HELPER}, {"text.py": HELPER, "pages.py": method})
    assert found.written == "pages.py:Page.to_path"


def test_what_was_moved_or_changed_in_its_place_repeats_nothing() -> None:
    assert not duplicates({"text.py": HELPER}, {"slugs.py": HELPER})
    assert not duplicates({"text.py": HELPER}, {"text.py": HELPER.replace("limit=40", "limit=60")})


def test_short_functions_are_alike_by_chance() -> None:
    short = "def name(self):\n    return self._name\n"
    assert not duplicates({"a.py": short}, {"a.py": short, "b.py": short})


def test_another_calculation_of_the_same_form_repeats_nothing() -> None:
    other = textwrap.dedent(
        """
        def initials(person, separator="."):
            letters = [word[0].upper() for word in person.names if word]
            if not letters:
                raise ValueError(f"{person} has no names")
            return separator.join(letters) + separator
        """
    )
    assert not duplicates({"text.py": HELPER}, {"text.py": HELPER, "pages.py": other})


@pytest.mark.parametrize("source", ["def broken(:\n", "x = '\0'"])
def test_what_is_no_python_is_not_compared(source: str) -> None:
    assert not duplicates({"text.py": HELPER}, {"text.py": HELPER, "b.py": source})
