"""A directory of Parquet files, a table each: the keys that relational.toml or RelBench says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from dgl_heta.tools import read_section, read_toml
from dgl_heta_relational.settings import RelationalSettings

KEYS = "relational.toml"


def parquet_files(path: Path) -> list[Path]:
    """The tables of a directory: its files, or those in `db`, as RelBench has them."""
    return sorted(path.glob("*.parquet")) or sorted((path / "db").glob("*.parquet"))


def is_directory_of_tables(path: Path) -> bool:
    """Return whether a directory holds tables with their keys."""
    files = parquet_files(path) if path.is_dir() else []
    return bool(files) and ((path / KEYS).is_file() or bool(_relbench(files[0])))


def directory_settings(path: Path, said: RelationalSettings) -> RelationalSettings:
    """What a directory's own files say of its tables, and over it what settings say.

    Raises
    ------
    InputError
        A relational.toml that is no TOML, or has other words.
    """
    values = {"tables": {file.stem: table for file in parquet_files(path)
                         if (table := _relbench(file))}}
    file = path / KEYS
    for more in (read_toml(file, "keys") if file.is_file() else {},
                 said.model_dump(exclude_unset=True)):
        values = {**values, **more, "tables": {**values["tables"], **more.get("tables", {})}}
    return cast(RelationalSettings, read_section(RelationalSettings, values, str(file)))


def _relbench(file: Path) -> dict[str, Any]:
    """What RelBench says of a table in its file, if it does."""
    try:
        said = pq.read_schema(file).metadata or {}
        return {"key": [*filter(None, [json.loads(said[b"pkey_col"])])],
                "foreign": json.loads(said[b"fkey_col_to_pkey_table"]),
                "time": json.loads(said[b"time_col"])}
    except (OSError, pa.ArrowException, ValueError, KeyError):
        return {}  # of a file of others, or that cannot be read: DuckDB says why
