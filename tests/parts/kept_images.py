"""The folder of prepared images, which all tests share and which stays between runs: a machine's programs are 6 GB."""

from pathlib import Path

KEPT = Path(__file__).resolve().parents[2] / "build" / "environments"
IMAGES = KEPT / "images"
"""Within it, where images and their layers are."""
