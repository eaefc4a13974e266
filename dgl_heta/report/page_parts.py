"""Parts of a report's sections: pictures and tables, without their looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """An image as a `data:` address."""

    data: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Table:
    """Rows of texts; the columns `numeric` are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    numeric: Sequence[int] = ()
    caption: str = ""
    narrow: bool = False


@dataclass(frozen=True)
class Section:
    """A part of the page; one without content is left out. `columns` of tables are side by side."""

    title: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    columns: Sequence[Sequence[Table]] = ()
    notes: Sequence[str] = ()

    @property
    def content(self) -> bool:
        """True if there is anything to show."""
        return bool(self.pictures or self.tables or self.columns or self.notes)
