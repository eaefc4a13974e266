"""What a database does not say itself: times, the label, keys that nobody declared.

The same words are in `[plugins.relational]` of the settings, and in relational.toml of a directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TableSettings(BaseModel):
    """What is said of one table."""

    model_config = ConfigDict(extra="forbid")

    key: list[str] | None = Field(None, description="columns of its primary key; empty: its rows "
                                  "have no names")
    foreign: dict[str, str] = Field({}, description="further foreign keys: column (or several, "
                                    "separated by commas) to the table")
    time: str | None = Field(None, description="column with the time from which on a row is there")
    features: dict[str, str] = Field({}, description="column to number, category, date, text …, or "
                                     "none; default: what follows from its type")


class RelationalSettings(BaseModel):
    """How a database becomes a graph."""

    model_config = ConfigDict(extra="forbid")

    schemas: list[str] = Field([], description="schemas to read; default: the connection's own")
    only: list[str] = Field([], description="tables to read; default: all, without views")
    skip: list[str] = Field([], description="tables to leave out")
    tables: dict[str, TableSettings] = Field({}, description="what is said of a table")
    label: str | None = Field(None, description="TABLE.COLUMN that is predicted, one label a row")
    split: list[float] | str = Field([0.8, 0.1, 0.1], description="of the rows with a label: parts "
                                     "for training, validation and test, by the table's time, or "
                                     "the column that says train, val or test")
    train_until: str | None = Field(None, description="a time, ISO 8601: means and categories are "
                                    "of rows up to it; default: the last time in training")
    missing: Literal["count", "error"] = Field("count", description="what a foreign key to no row "
                                               "is: left out and counted, or an error")
    timeout_s: float = Field(600, gt=0, description="how long a server may take to answer, such as "
                             "with the first row of --task")
    seeds: Path = Field(Path("seeds.parquet"), description="where the table of --task goes; name "
                        "it in task.table")
