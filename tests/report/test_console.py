"""What comes from files and programs of others is shown at a terminal, and never obeyed by it."""

from __future__ import annotations

import io
import logging
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.markup import escape
from rich.text import Text

from dgl_heta.report import console
from dgl_heta.report.console import PlainConsole, print_line, show_warnings, table

STYLES = re.compile(r"\x1b\[[0-9;]*m")  # what rich says itself
NAMES = st.text(st.characters(codec=None), min_size=1, max_size=30)


def obeyed(sent: str) -> list[str]:
    """Characters that a terminal does not show, but for styles and ends of lines."""
    return [c for c in STYLES.sub("", sent).replace("\n", "") if not c.isprintable()]


@pytest.mark.parametrize("terminal", [True, False])
@given(name=NAMES)
@example(name="\x1b[31mred\x1b]0;title\x07\x9b2J\r\x08\u202e:warning:")
@example(name="\ud800")
def test_no_name_controls_a_terminal(terminal: bool, name: str) -> None:
    file = io.StringIO()
    made = PlainConsole(file=file, force_terminal=terminal, color_system="standard", width=40)
    made.print(Text(name, style="red"))
    made.print(name, markup=False, highlight=False, soft_wrap=True)
    made.print(f"[bold]{escape(name)}[/]")
    rows = table(Text(name), "value", title=Text(name))
    rows.add_row(Text(name), escape(name))
    made.print(rows)
    assert obeyed(file.getvalue()) == []


def test_a_name_between_colons_is_no_picture() -> None:
    file = io.StringIO()
    PlainConsole(file=file).print("paper:warning:author")
    assert file.getvalue() == "paper:warning:author\n"


def test_a_line_of_a_process_keeps_its_colours_and_nothing_else() -> None:
    file = io.StringIO()
    made = PlainConsole(file=file, force_terminal=True, color_system="standard", width=40)
    text = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2Jafter\tall"
    print_line(made, "host0 trainer0", text, "cyan")
    assert obeyed(file.getvalue()) == []
    assert "\x1b[31mred\x1b[0m" in file.getvalue()
    assert "after" in file.getvalue()
    file.truncate(file.seek(0))
    print_line(PlainConsole(file=file), "host0 trainer0", "\x1b[31mred\x1b[0m")  # into a file
    assert file.getvalue() == "[host0 trainer0] \x1b[31mred\x1b[0m\n"


def test_warnings_are_shown_so_too(monkeypatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(console, "err", PlainConsole(file=file))
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    show_warnings()
    record = logging.LogRecord("dgl_heta", logging.WARNING, "", 0, "%s is [bold]", ("\x1bx",), None)
    logging.lastResort.handle(record)
    assert file.getvalue() == "\ufffdx is [bold]\n"
