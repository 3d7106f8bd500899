import sys

sys.path.insert(0, "/app")

import hashlib
from pathlib import Path


def test_the_answer_is_the_line():
    assert Path("/app/answer.txt").read_text().strip() == "sqlparse/formatter.py:96"


def test_nothing_else_was_changed():
    digest = hashlib.sha256(Path("/app/sqlparse/formatter.py").read_bytes()).hexdigest()
    assert digest == "09ffef00a99c48df96abfe87cf5341b458f1265f1dc98c1c65fefbd84732e0c5"
