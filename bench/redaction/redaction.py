"""What redaction finds, what it takes for something that it is not, and how long it takes.

    python -m bench redaction [--each 20]

Secrets are drawn in the forms of many vendors, people by Faker (of the extra `redaction`), and left in code, settings,
logs and prose. Held out are forms and countries that nobody looked at while the rules were written. A value is found
where no run of twelve of its characters is left, or of all of them where it is shorter. Code is that of the packages
which are installed here; each of its lines with any finding counts, also where that is a person's name or address."""

import argparse
import random
import statistics
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from api.redaction.finder import Finder
from bench.redaction.people import HELD_OUT, KNOWN, people_of
from bench.redaction.secret_forms import Planted, held_out, held_out_forms, secrets_of
from bench.table import Row, report

SEED, EACH, FILES = 24, 20, 1500
SECRETS, PERSONAL, LINES, MS = 0.98, 0.9, 0.005, 2.0
LEFT = 12  # characters of a value in a row, by which it counts as not found
CHUNK = 4096
_SUFFIXES = (".py", ".pyi", ".js", ".ts", ".c", ".h", ".cpp", ".json", ".toml", ".yaml")
_LARGEST = 200_000  # bytes of a file: beyond that it is data


def recall(finder: Finder, planted: Iterable[Planted], misses: Counter[str] | None = None) -> tuple[float, int]:
    """Return the share of values that are found, and how many there were."""
    found = total = 0
    for each in planted:
        total += 1
        if is_found(finder, each):
            found += 1
        elif misses is not None:
            misses[each.name] += 1
    return found / total, total


def is_found(finder: Finder, planted: Planted) -> bool:
    left, end = [], 0
    for each in finder.find(planted.text):
        left.append(planted.text[end : each.start])
        end = each.end
    rest = "\0".join([*left, planted.text[end:]])
    value, size = planted.value, min(LEFT, len(planted.value))
    return not any(value[start : start + size] in rest for start in range(len(value) - size + 1))


def code(seed: int, files: int) -> Iterator[str]:
    """Yield texts of installed packages."""
    root = Path(sysconfig.get_path("purelib"))
    found = sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    random.Random(seed).shuffle(found)
    for path in found[:files]:
        if path.stat().st_size <= _LARGEST:
            yield path.read_text(encoding="utf-8", errors="replace")


def flagged_lines(finder: Finder, texts: Iterable[str]) -> tuple[int, int]:
    """Return how many lines have a finding, and how many lines there are."""
    flagged = total = 0
    for text in texts:
        total += text.count("\n") + 1
        flagged += len({text.count("\n", 0, each.start) for each in finder.find(text)})
    return flagged, total


def milliseconds(finder: Finder, texts: Sequence[str]) -> float:
    """Return the median time of the processor for a chunk."""
    spent = []
    for text in texts:
        begun_s = time.process_time()
        finder.find(text)
        spent.append((time.process_time() - begun_s) * 1000)
    return statistics.median(spent)


def chunks(planted: Sequence[Planted], texts: Iterable[str]) -> list[str]:
    """Return chunks of code, and as many of what else people send, with something to find in each."""
    whole = "\n".join(texts)
    prose = "\n".join(each.text for each in planted)
    return [
        text[at : at + CHUNK] for text in (whole[: 400 * CHUNK], prose) for at in range(0, len(text) - CHUNK, CHUNK)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=EACH)
    each = parser.parse_args().each
    report("redaction", list(rows(each)))


def rows(each: int) -> Iterator[Row]:
    both, secrets, personal = Finder(["secrets", "pii"]), Finder(["secrets"]), Finder(["pii"])
    drawn = list(secrets_of(SEED, each))
    people = {country: list(people_of(country, SEED, each)) for country in (*KNOWN, *HELD_OUT)}
    yield _recall_row("secrets of known forms", *recall(secrets, drawn), SECRETS)
    yield _recall_row("secrets of forms held out", *recall(secrets, held_out_forms(SEED)), SECRETS)
    share, count = recall(secrets, held_out())
    yield Row("the same, as their collectors wrote them", share, "recall", f"{count} values")
    for name, countries in (("known", KNOWN), ("held out", HELD_OUT)):
        planted = [one for country in countries for one in people[country]]
        yield _recall_row(f"personal data, countries {name}", *recall(personal, planted), PERSONAL)
    everybody = [one for planted in people.values() for one in planted]
    for kind in dict.fromkeys(one.name for one in everybody):
        share, count = recall(personal, (one for one in everybody if one.name == kind))
        yield Row(f"of these: {kind}", share, "recall", f"{count} values")
    texts = list(code(SEED, FILES))
    for name, finder in (("secrets", secrets), ("secrets and personal data", both)):
        flagged, total = flagged_lines(finder, texts)
        against, share = f"{flagged:,} of {total:,} lines", flagged / total
        metric = f"lines of code with a finding, {name}"
        if finder is both:
            yield Row.at_most(metric, share, "share of lines", against, share, LINES)
        else:
            yield Row(metric, share, "share of lines", against)
    parts = chunks([*drawn, *everybody], texts)
    spent = milliseconds(both, parts)
    yield Row.at_most("time for 4 kB, secrets and personal data", spent, "ms", f"{len(parts)} chunks", spent, MS)
    yield Row("time for 4 kB, secrets alone", milliseconds(secrets, parts), "ms", f"{len(parts)} chunks")
    large = "\n".join(texts)[: 1 << 20]
    yield Row("time for 1 MB", milliseconds(both, [large]), "ms", "1 text")


def _recall_row(metric: str, share: float, count: int, goal: float) -> Row:
    return Row.at_least(metric, share, "recall", f"{count} values", share, goal)


if __name__ == "__main__":
    main()
