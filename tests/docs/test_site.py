"""The documentation's site: it is built without a warning, is complete, and fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

from dgl_heta.cli import app
from dgl_heta.settings import keys
from tests.docs.pages import ROOT
from tests.support.waiting import PATIENCE


class Addresses(HTMLParser):
    """What a page loads by itself, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        there = dict(attrs)
        if tag != "a":
            self.loaded += filter(None, [there.get("src"), there.get("href")])

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.needs("dgl")  # public names of the adapters
def test_the_site_has_no_warning_all_commands_and_settings_and_fetches_nothing(
        tmp_path: Path) -> None:
    """Links between pages, too, are warnings of the build."""
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module)
    done = subprocess.run([sys.executable, ROOT / "scripts/build_docs.py", "--out", tmp_path],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    pages = {}
    for file in (tmp_path / "html").rglob("*.html"):
        pages[file.relative_to(tmp_path / "html").as_posix()] = page = Addresses()
        page.feed(file.read_text(encoding="utf-8"))
        assert not [address for address in page.loaded if "//" in address], file
    text = {name: "".join(page.words) for name, page in pages.items()}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"dgl-heta {name} " in text["reference/commands.html"]
        for option in command.params:
            assert option.opts[0] in text["reference/commands.html"]
    assert all(key in text["reference/settings.html"] for key in keys())
    written = {file.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
               for file in (ROOT / "docs").rglob("*.md")}
    assert written <= set(pages)
    style = (tmp_path / "html/_static").rglob("*.css")
    assert not [file for file in style if re.search(r"(url\(|@import)\s*[\"']?https?:",
                                                    file.read_text(encoding="utf-8"))]
