"""What a database does not say itself: times, the label, keys that nobody declared.

The same words are in `[plugins.relational]` of the settings, and in relational.toml of a directory
of Parquet files, if RelBench has not written the keys into these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from dgl_heta.tools import read_section, read_toml

KEYS = "relational.toml"


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


def parquet_files(path: Path) -> list[Path]:
    """The tables of a directory: its files, or those in `db`, as RelBench has them."""
    return sorted(path.glob("*.parquet")) or sorted((path / "db").glob("*.parquet"))


def is_directory_of_tables(path: Path) -> bool:
    """Return whether a directory holds tables with their keys."""
    files = parquet_files(path) if path.is_dir() else []
    return bool(files) and ((path / KEYS).is_file() or bool(_relbench(files[0])))


def directory_settings(path: Path, said: RelationalSettings) -> RelationalSettings:
    """What a directory's own files say of its tables, and over it what settings say."""
    file, values = path / KEYS, {"tables": {table.stem: _relbench(table)
                                            for table in parquet_files(path)}}
    for more in (read_toml(file, "keys") if file.is_file() else {},
                 said.model_dump(exclude_unset=True)):
        values = _joined(values, more)
    return cast(RelationalSettings, read_section(RelationalSettings, values, str(file)))


def _joined(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """What one says, and what another says, which counts where both do, however deep."""
    return {**values, **{key: _joined(values[key], value) if isinstance(value, dict)
                         and isinstance(values.get(key), dict) else value
                         for key, value in more.items()}}


def _relbench(file: Path) -> dict[str, Any]:
    """What RelBench says of a table in its file, if it does."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        said = parquet.read_schema(file).metadata or {}
        return {"key": [*filter(None, [json.loads(said[b"pkey_col"])])],
                "foreign": json.loads(said[b"fkey_col_to_pkey_table"]),
                "time": json.loads(said[b"time_col"])}
    except (OSError, pa.ArrowException, ValueError, KeyError):
        return {}  # of a file of others, or that cannot be read: DuckDB says why
