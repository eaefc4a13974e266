"""A database of DuckDB, which gives Arrow's batches itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dgl_heta import HetaError, InputError
from dgl_heta.tools import optional
from dgl_heta_relational.arrow_types import as_declared, declared
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table, in_declared_case


class DuckDatabase(Database):
    """The file of a `duckdb:///FILE`, opened to be read alone, in one transaction.

    Raises
    ------
    InputError
        There is no such file, or no DuckDB.
    HetaError
        It cannot be opened: another process writes to it.
    """

    def __init__(self, url: str, settings: RelationalSettings) -> None:
        path = Path(url.partition(":///")[2])
        if not path.is_file():
            raise InputError(f"there is no database '{path}'; after duckdb:/// comes the path of a "
                             "file")
        self.name, self.where = path.stem, f"duckdb:///{path}"
        self._duckdb = optional("duckdb", "a database of DuckDB", "duckdb")
        with self._told():
            self._connection = self._duckdb.connect(str(path), read_only=True)
            self._connection.begin()
        try:
            with self._told():
                self.tables = in_declared_case(
                    {table.name: table for table in self._reflected(settings.schemas)})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def counts(self, table: Table, keys: Sequence[ForeignKey]) -> list[int]:
        known = ["count(CASE WHEN " + " AND ".join(f"{_quoted(c)} IS NOT NULL" for c in key.columns)
                 + " THEN 1 END)" for key in keys]
        with self._told():
            return [*self._rows(f"SELECT {', '.join(['count(*)', *known])} FROM "
                                f"{self._names[table.name]}")[0]]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        yield from self.query(f"SELECT {', '.join(map(_quoted, columns))} FROM "
                              f"{self._names[table.name]}")

    def query(self, text: str) -> Iterator[Any]:
        with self._told():
            for batch in self._read(text):
                yield as_declared(batch)

    def _reflected(self, schemas: Sequence[str]) -> Iterator[Table]:
        """All tables and views of the schemas."""
        (own,), = self._rows("SELECT current_schema()")
        schemas = schemas or [own]
        self._names: dict[str, str] = {}
        for schema, name, is_view in self._rows(
                "SELECT table_schema, table_name, table_type = 'VIEW' FROM "
                "information_schema.tables WHERE table_catalog = current_database()"):
            if schema not in schemas:
                continue
            full = name if schema == schemas[0] else f"{schema}.{name}"
            self._names[full] = f"{_quoted(schema)}.{_quoted(name)}"
            schema_of = self._read(f"SELECT * FROM {self._names[full]} LIMIT 0").schema
            kinds = {column.name: declared(column.type) for column in schema_of}
            keys = self._connection.execute(
                "SELECT constraint_type, constraint_column_names, referenced_table, "
                "referenced_column_names FROM duckdb_constraints() WHERE database_name = "
                "current_database() AND schema_name = ? AND table_name = ? ORDER BY 2",
                [schema, name]).fetchall()
            key = [tuple(columns) for kind, columns, *_ in keys if kind == "PRIMARY KEY"]
            yield Table(full, kinds, key[0] if key else None, tuple(
                ForeignKey(tuple(columns), other, tuple(referred))
                for kind, columns, other, referred in keys if kind == "FOREIGN KEY"),
                is_view=bool(is_view))

    def _read(self, text: str) -> Any:
        """What a query gives, to be read in batches."""
        asked = self._connection.sql(text)
        if asked is None:
            raise InputError("the query of --task gives no rows; it must be a SELECT")
        return (getattr(asked, "to_arrow_reader", None) or asked.fetch_arrow_reader)(ROWS)

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(text).fetchall()
        return rows

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._duckdb.Error as error:
            raise HetaError(f"cannot read {self.where}: {' '.join(str(error).split())[:300]}"
                            ) from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
