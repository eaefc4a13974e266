"""A directory of Parquet files, a table each; the keys are in relational.toml, or in the files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgl_heta import HetaError, InputError
from dgl_heta.tools import read_section, read_toml
from dgl_heta_relational.arrow_types import as_declared, declared
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table

KEYS = "relational.toml"
RELBENCH = (b"pkey_col", b"fkey_col_to_pkey_table", b"time_col")
"""What RelBench writes about a table into its file."""


def is_directory_of_tables(path: Path) -> bool:
    """Return whether a directory holds tables with their keys."""
    if not path.is_dir():
        return False
    if (path / KEYS).is_file():
        return True
    return any(_relbench(file) is not None for file in _files(path)[:1])


def _files(path: Path) -> list[Path]:
    """The tables of a directory: its files, or those in `db`, as RelBench has them."""
    return sorted(path.glob("*.parquet")) or sorted((path / "db").glob("*.parquet"))


def _relbench(file: Path) -> dict[str, Any] | None:
    """What RelBench says of a table in its file, or None."""
    try:
        said = pq.read_schema(file).metadata or {}
        return ({name.decode(): json.loads(said[name]) for name in RELBENCH}
                if {*RELBENCH} <= said.keys() else None)
    except (OSError, pa.ArrowException, ValueError):
        return None  # whoever reads it says what is wrong


class ParquetDirectory(Database):
    """The tables of a directory, one in each file.

    Raises
    ------
    InputError
        A file that is no Parquet.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.where = path.resolve().name, str(path)
        self._path, self._seen = path, dict[str, tuple[int, int]]()
        self._files = {file.stem: file for file in _files(path)}
        if not self._files:
            raise InputError(f"{path} has no .parquet files, a table each")
        self.tables = {name: self._table(name, file) for name, file in self._files.items()}

    def settings(self, said: RelationalSettings) -> RelationalSettings:
        """What the directory's own file says, where it has one; over it what settings say.

        Raises
        ------
        InputError
            The file is no TOML, or has other words.
        """
        file = self._path / KEYS
        if not file.is_file():
            return said
        values = read_toml(file, "keys")
        given = said.model_dump(exclude_unset=True)
        tables = {**values.pop("tables", {}), **given.pop("tables", {})}
        read: Any = read_section(
            RelationalSettings, {**values, **given, "tables": tables}, str(file))
        settings: RelationalSettings = read
        return settings

    def counts(self, table: Table, keys: Sequence[ForeignKey]) -> list[int]:
        counts = [pq.read_metadata(self._files[table.name]).num_rows]
        known = [0] * len(keys)
        columns = sorted({column for key in keys for column in key.columns})
        for batch in self.batches(table, columns) if keys else ():
            for place, key in enumerate(keys):
                valid = [batch.column(column).is_valid() for column in key.columns]
                for other in valid[1:]:
                    valid[0] = pc.and_(valid[0], other)
                known[place] += valid[0].true_count
        return counts + known

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        file = self._files[table.name]
        self._check_unchanged(table.name)
        try:
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(ROWS, columns=list(columns)):
                    batch.validate(full=True)
                    yield as_declared(batch.select(list(columns)))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise InputError(f"cannot read {file}: {' '.join(str(error).split())}") from None
        self._check_unchanged(table.name)

    def close(self) -> None:
        """Nothing is open between two files."""

    def query(self, text: str) -> Iterator[Any]:
        raise InputError(f"{self.where} is a directory of files, which answers no query; give the "
                         "table of (id, time, label) itself as task.table, without --task")

    def _table(self, name: str, file: Path) -> Table:
        try:
            schema = pq.read_schema(file)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise InputError(f"cannot read {file}: {' '.join(str(error).split())}") from None
        self._check_unchanged(name)
        columns = {column.name: declared(column.type) for column in schema}
        said = _relbench(file)
        if said is None:
            return Table(name, columns)
        return Table(name, columns, (said["pkey_col"],) if said["pkey_col"] else (),
                     tuple(ForeignKey((column,), other)
                           for column, other in said["fkey_col_to_pkey_table"].items()),
                     said["time_col"])

    def _check_unchanged(self, name: str) -> None:
        """Refuse a file that is another than when it was opened."""
        state = self._files[name].stat()
        now = (state.st_size, state.st_mtime_ns)
        if self._seen.setdefault(name, now) != now:
            raise HetaError(f"{self._files[name]} changed while it was read; read it again when "
                            "nothing writes to it")
