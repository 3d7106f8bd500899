"""The pages that `mkdocs.yml` builds beside those of `docs/`.

They are the README as the first page, the changelog, a list of the decisions, and the shipped reward spec. Links that
lead out of `docs/` or into it are changed to those of the site."""

import re
from collections.abc import Sequence
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_MOVED = {"../CHANGELOG.md": "changelog.md", "../onward/rewards.toml": "rewards.toml"}
_LINK = re.compile(r"(\]\()([^)#]+)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "rewards.toml": "onward/rewards.toml"}
    for name, source in pages.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, name, content=_in_docs(text) if name.endswith(".md") else text))
    decisions = sorted(Path(config.docs_dir).glob("decisions/*.md"))
    files.append(File.generated(config, "decisions/index.md", content=_list(decisions)))
    for section in config.nav[-1].values():  # the section for engineers
        section[-1]["Decisions"] = ["decisions/index.md", *(f"decisions/{path.name}" for path in decisions)]
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    return _LINK.sub(lambda link: link[1] + _MOVED.get(link[2], link[2]), markdown)


def _in_docs(text: str) -> str:
    """Rewrite the links of a page beside `docs/` as if the page were in it."""
    return text.replace("](docs/decisions/)", "](decisions/index.md)").replace("](docs/", "](")


def _list(decisions: Sequence[Path]) -> str:
    lines = ["# Decisions", "", "What was chosen, tried and dropped."]
    for path in decisions:
        title = _TITLE.search(path.read_text())
        assert title is not None, f"{path}: no title"
        lines += ["", f"- [{title[1]}]({path.name})"]
    return "\n".join(lines) + "\n"
