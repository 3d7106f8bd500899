"""The pretrained model that `make smollm2` makes."""

from pathlib import Path

import pytest
from pretrained import smollm2

from deploy.smollm2 import __main__ as making


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    for name in making.DIGESTS:
        (tmp_path / name).write_bytes(b"other")
    with pytest.raises(making.NotMade, match=r"model\.safetensors in .* has digest"):
        making.check(tmp_path)


def test_a_part_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(making.NotMade, match=r"model\.safetensors"):
        making.check(tmp_path)


@pytest.mark.verify
def test_it_has_the_bytes_that_it_must_have() -> None:
    making.check(smollm2())
