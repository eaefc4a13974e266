"""The Markdown pages of the repository, taken apart: text, code blocks, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md",
                ROOT / "scripts/bench/README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Code:
    """A code block: its page, its language and what is in it."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}, block with {self.text.splitlines()[0]!r}"


def blocks(*languages: str) -> list[Code]:
    """The code blocks of these languages on all pages."""
    return [Code(page, language, text) for page in PAGES
            for language, text in FENCE.findall(page.read_text(encoding="utf-8"))
            if language in languages]


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """What a page links to, as it is written, images included."""
    return LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a console block, its continued lines and no comments."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("$ "):
            yield re.sub(r"\s{2,}# .*|\s# .*$", "", line[2:]).split()
