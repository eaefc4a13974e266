"""How everything looks at a terminal: the two consoles, one table, one progress bar.

Names and messages come from files and programs of others. What a terminal would obey in them is
shown, not sent; only what rich itself styles by is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from dgl_heta.report.text import visible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import TextType


class PlainConsole(Console):
    """A console that sends no control characters but rich's own, and no pictures for `:names:`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None
               ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else "\n".join(map(visible, text.split("\n"))), style,
                          control)


out = PlainConsole()
err = PlainConsole(stderr=True)


class Advance(Protocol):
    """Moves a progress bar: what is being done, how far it is, and a figure beside it."""

    def __call__(self, what: str, done: float, total: float = 1.0, beside: str = "") -> None: ...


def table(*columns: str, title: TextType | None = None, right: Sequence[str] = (), head: bool = True
          ) -> Table:
    """An empty table in the style of the command line; `right` columns hold numbers."""
    from rich.table import Table

    empty = Table(title=title, title_justify="left", title_style="bold", header_style="dim",
                  box=box.SIMPLE_HEAD, show_edge=False, show_header=head, pad_edge=False,
                  padding=(0, 1, 0, 0))
    for column in columns:
        empty.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return empty


@contextmanager
def progress(show: bool = True) -> Iterator[Advance]:
    """A progress bar on standard error, where a person looks at it; it is gone at the end."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
                  TimeRemainingColumn(), TextColumn("{task.fields[beside]}"), console=err,
                  transient=True, disable=not (show and err.is_terminal)) as bar:
        task = None

        def advance(what: str, done: float, total: float = 1.0, beside: str = "") -> None:
            nonlocal task
            if task is None:
                task = bar.add_task("", total=total, beside="")
            bar.update(task, description=escape(what), completed=done, total=total, beside=beside)

        yield advance


def note(text: str) -> None:
    """A remark on standard error."""
    err.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


def print_line(console: Console, label: str, text: str, colour: str = "") -> None:
    """A line that a process wrote, with its origin; at a terminal its colours are all that is
    obeyed in it."""
    if console.is_terminal:
        console.print(Text.assemble((f"[{label}] ", colour), Text.from_ansi(text)), soft_wrap=True)
    else:
        console.file.write(f"[{label}] {text}\n")
        console.file.flush()


class _ToErr(logging.Handler):
    """Warnings of a process that has not said where they go."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def show_warnings() -> None:
    """Let warnings that no handler takes go to standard error, as Python does, by the console."""
    logging.lastResort = _ToErr(logging.WARNING)


def print_json(value: Any) -> None:
    """One JSON object as the last line of standard output."""
    print(json.dumps(value), flush=True)
