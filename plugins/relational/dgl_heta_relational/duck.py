"""What DuckDB reads, as Arrow's batches: a database of its own, or Parquet files, a table each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dgl_heta import HetaError, InputError
from dgl_heta.tools import optional
from dgl_heta_relational.settings import RelationalSettings, parquet_files
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table, in_declared_case
from dgl_heta_relational.values import as_declared, declared


class DuckDatabase(Database):
    """A database of DuckDB, opened to be read alone, in one transaction; or a directory of Parquet
    files, which are views to DuckDB.

    Raises
    ------
    InputError
        There is no such file, or no DuckDB.
    HetaError
        It cannot be opened: another process writes to it.
    """

    def __init__(self, path: Path, settings: RelationalSettings) -> None:
        if not path.exists():
            raise InputError(f"there is no database '{path}'; after duckdb:/// comes the path of a "
                             "file")
        self._files = {file.stem: file for file in parquet_files(path)} if path.is_dir() else {}
        self.name = path.resolve().stem
        self.where = str(path) if self._files else f"duckdb:///{path}"
        self._state, self.names = self._states(), {}
        self._duckdb = optional("duckdb", f"reading {self.where}", "duckdb", "dgl-heta-relational")
        with self._told():
            self._connection = self._duckdb.connect(":memory:" if self._files else str(path),
                                                    read_only=not self._files)
        try:
            with self._told():
                self._connection.begin()
                for name, file in self._files.items():
                    self._connection.execute(f"CREATE VIEW {self.quoted(name)} AS SELECT * FROM "
                                             f"read_parquet({self.quoted(str(file), chr(39))}, "
                                             "hive_partitioning = false)")
                self.tables = in_declared_case(self._reflected(settings.schemas))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        yield from super().batches(table, columns)
        if self._states() != self._state:
            raise HetaError(f"files of {self.where} changed while they were read; read them again "
                            "when nothing writes to them")

    def _read(self, query: str, what: str, columns: Mapping[str, Any] | None) -> Iterator[Any]:
        with self._told():
            for batch in self._reader(query, what):
                yield as_declared(batch, f"{what} of {self.where}")

    def _reader(self, query: str, what: str) -> Any:
        asked = self._connection.sql(query)
        if asked is None:
            raise InputError(f"{what} gives no rows; it must be a SELECT")
        return (getattr(asked, "to_arrow_reader", None) or asked.fetch_arrow_reader)(ROWS)

    def _reflected(self, schemas: Sequence[str]) -> Iterator[Table]:
        """All tables and views of the schemas."""
        (own,), = self._rows("SELECT current_schema()")
        schemas = schemas or [own]
        for schema, name, is_view in self._rows(
                "SELECT table_schema, table_name, table_type = 'VIEW' FROM "
                "information_schema.tables WHERE table_catalog = current_database()"):
            if schema not in schemas:
                continue
            full = name if schema == schemas[0] else f"{schema}.{name}"
            self.names[full] = f"{self.quoted(schema)}.{self.quoted(name)}"
            columns = self._reader(f"SELECT * FROM {self.names[full]} LIMIT 0", full).schema
            keys = self._rows(
                "SELECT constraint_type, constraint_column_names, referenced_table, "
                "referenced_column_names FROM duckdb_constraints() WHERE database_name = "
                "current_database() AND schema_name = ? AND table_name = ? ORDER BY 2",
                schema, name)
            key = [tuple(columns) for kind, columns, *_ in keys if kind == "PRIMARY KEY"]
            yield Table(full, {column.name: declared(column.type) for column in columns},
                        key[0] if key else None, tuple(
                ForeignKey(tuple(columns), other, tuple(referred))
                for kind, columns, other, referred in keys if kind == "FOREIGN KEY"),
                is_view=bool(is_view) and not self._files)

    def _states(self) -> list[tuple[int, int]]:
        """What changes where files do."""
        states = [file.stat() for file in self._files.values()]
        return [(state.st_size, state.st_mtime_ns) for state in states]

    def _rows(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(text, values).fetchall()
        return rows

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._duckdb.Error as error:
            raise HetaError(f"cannot read {self.where}: {' '.join(str(error).split())[:300]}"
                            ) from None
