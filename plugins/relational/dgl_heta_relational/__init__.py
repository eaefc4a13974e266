"""Databases as graphs: tables are node types, foreign keys are relations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from dgl_heta import Reader, hookimpl
from dgl_heta_relational.settings import RelationalSettings, is_directory_of_tables

if TYPE_CHECKING:
    from dgl_heta import GraphSource, Schema
    from dgl_heta_relational.tables import Database

__all__ = ["Relational", "RelationalSettings"]


class Relational(Reader):
    """A database that SQLAlchemy reaches, or a directory of Parquet files with keys."""

    name = "relational"
    description = ("a database (sqlite:///FILE, duckdb:///FILE, postgresql://…, mysql://…), or a "
                   "directory of Parquet files with relational.toml or of RelBench's")
    settings = RelationalSettings()
    schemes = ("sqlite", "duckdb", "postgresql", "mysql", "mariadb")

    class Options(BaseModel):
        """Options of a database."""

        task: str | None = Field(None, description="a query for (id, time, label) of the rows to "
                                 "predict, or with split; they go to plugins.relational.seeds")

    options = Options()

    def matches(self, path: Path) -> bool:
        return is_directory_of_tables(path)

    def schema(self, path: Any, **options: Any) -> Schema:
        from dgl_heta_relational.layout import make_layout

        with self._open(path) as database:
            return make_layout(database).schema(database)

    def read(self, path: Any, **options: Any) -> GraphSource:
        from dgl_heta_relational.graph import read_graph

        with self._open(path) as database:
            return read_graph(database, options.get("task"))

    def _open(self, path: Any) -> Database:
        from dgl_heta_relational.duck import DuckDatabase

        if isinstance(path, str):
            from dgl_heta_relational.sql import SqlDatabase, parsed_url

            if not path.startswith("duckdb:"):
                return SqlDatabase(path, self.settings)
            path = Path(parsed_url(path).database or "")
        return DuckDatabase(path, self.settings)


@hookimpl
def dgl_heta_readers() -> list[Reader]:
    return [Relational()]
