"""What DuckDB reads, as Arrow's batches: a database of its own, or Parquet files, a table each."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dgl_heta import HetaError, InputError
from dgl_heta.tools import optional
from dgl_heta_relational.settings import RelationalSettings, directory_settings, parquet_files
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table, as_known, by_name


class DuckDatabase(Database):
    """A database of DuckDB, opened to be read alone, in one transaction; or a directory of Parquet
    files, which are views to DuckDB."""

    def __init__(self, path: Path, settings: RelationalSettings) -> None:
        self.settings = directory_settings(path, settings) if path.is_dir() else settings
        self._files = parquet_files(path) if path.is_dir() else []
        self.name = path.resolve().stem
        self.where = str(path) if self._files else f"duckdb:///{path}"
        self._state = self._states()
        duckdb = optional("duckdb", f"reading {self.where}", "duckdb", "dgl-heta-relational")
        self._error = duckdb.Error
        with ExitStack() as opening, self._told():
            self._connection = duckdb.connect(":memory:" if self._files else str(path),
                                              read_only=not self._files)
            opening.callback(self.close)
            self._connection.begin()
            for file in self._files:  # DuckDB takes a path for a pattern
                self._connection.read_parquet(
                    glob.escape(str(file)), hive_partitioning=False).create_view(file.stem)
            self.tables = by_name(self._reflected())
            opening.pop_all()  # it stays open

    def close(self) -> None:
        self._connection.close()

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        yield from super().batches(table, columns)
        if self._states() != self._state:
            raise HetaError(f"files of {self.where} changed while they were read; read them again "
                            "when nothing writes to them")

    def query(self, text: str, what: str, declared: Mapping[str, Any] | None = None
              ) -> Iterator[Any]:
        with self._told():
            for batch in self._reader(text, what):
                columns = []
                for name, column in zip(batch.schema.names, batch.columns):
                    try:
                        columns.append(as_known(column))
                    except pa.ArrowInvalid as error:  # a time that microseconds do not reach
                        raise InputError(f"column '{name}' of {what} of {self.where} has a value "
                                         f"that cannot be read ({error}); correct it, or leave it "
                                         "empty") from None
                yield pa.record_batch(columns, batch.schema.names)

    def _reader(self, query: str, what: str) -> Any:
        asked = self._connection.sql(query)
        if asked is None:
            raise InputError(f"{what} gives no rows; it must be a SELECT")
        return (getattr(asked, "to_arrow_reader", None) or asked.fetch_arrow_reader)(ROWS)

    def _reflected(self) -> Iterator[Table]:
        """All tables and views of the schemas."""
        def rows(text: str, *values: str) -> list[tuple[Any, ...]]:
            found: list[tuple[Any, ...]] = self._connection.execute(text, values).fetchall()
            return found

        self.check_schemas([name for name, in rows(
            "SELECT schema_name FROM information_schema.schemata WHERE catalog_name = "
            "current_database()")])
        schemas = self.settings.schemas or [rows("SELECT current_schema()")[0][0]]
        for schema, name, is_view in rows(
                "SELECT table_schema, table_name, table_type = 'VIEW' FROM "
                "information_schema.tables WHERE table_catalog = current_database()"):
            if schema not in schemas:
                continue
            prefix = "" if schema == schemas[0] else f"{schema}."
            quoted = f"{self.quoted(schema)}.{self.quoted(name)}"
            keys = rows(
                "SELECT constraint_type, constraint_column_names, referenced_table, "
                "referenced_column_names FROM duckdb_constraints() WHERE database_name = "
                "current_database() AND schema_name = ? AND table_name = ? ORDER BY 2",
                schema, name)
            key = [tuple(columns) for kind, columns, *_ in keys if kind == "PRIMARY KEY"]
            yield Table(
                prefix + name, quoted,
                {column.name: column.type for column in self._reader(
                    f"SELECT * FROM {quoted} LIMIT 0", name).schema},
                key[0] if key else None,
                tuple(ForeignKey(tuple(columns), prefix + other, tuple(referred))
                      for kind, columns, other, referred in keys if kind == "FOREIGN KEY"),
                is_view=is_view and not self._files)

    def _states(self) -> list[tuple[int, int]]:
        """What changes where files do."""
        states = [file.stat() for file in self._files]
        return [(state.st_size, state.st_mtime_ns) for state in states]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise HetaError(f"cannot read {self.where}: {' '.join(str(error).split())[:300]}"
                            ) from None
