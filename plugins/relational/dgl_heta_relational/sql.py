"""Databases that SQLAlchemy reaches, in one transaction that only reads."""

from __future__ import annotations

import math
import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import event, types

from dgl_heta import HetaError, InputError
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table, in_declared_case
from dgl_heta_relational.values import BatchMaker

PASSWORD = "HETA_DATABASE_PASSWORD"
"""The environment variable that may have the password."""
_FETCHED = 1 << 11
"""Rows that are rows of Python at a time: of many more, its collector of garbage takes half."""
_SECRET = re.compile("pass(?!file)|pwd|secret|token", re.IGNORECASE)


class SqlDatabase(Database):
    """The database of a URL.

    All is read in one transaction: of SQLite, PostgreSQL and InnoDB it sees one moment,
    whatever others write.

    Raises
    ------
    InputError
        A URL that is none or has a password in it, a file that is not there, no driver.
    HetaError
        The database cannot be reached.
    """

    def __init__(self, url: str, settings: RelationalSettings) -> None:
        parsed = _parsed(url)
        kind = parsed.get_backend_name().replace("mariadb", "mysql")
        self.where = sa.URL.create(
            parsed.get_backend_name(), host=parsed.host, port=parsed.port,
            database=parsed.database).render_as_string()
        self.name = Path(parsed.database or parsed.host or kind).stem
        self._password = os.environ.get(PASSWORD, "")
        self._limit_s = settings.timeout_s
        self._connection: Any = None
        self._engine = _engine(parsed, kind, self._password, self.where, self._limit_s)
        with self._told():
            connection = self._engine.connect()
            if kind in ("postgresql", "mysql"):
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            self._is_file = kind == "sqlite"
            self._connection = connection if self._is_file else connection.execution_options(
                stream_results=True, max_row_buffer=ROWS,
                **({"postgresql_readonly": True} if kind == "postgresql" else {}))
            if kind == "mysql":
                connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
                connection.rollback()  # it holds for the next one
        try:
            with self._told():
                self._sql: dict[str, Any] = {}
                self.tables = in_declared_case(self._reflected(settings.schemas))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(sa.exc.SQLAlchemyError):  # of a server that is gone, whose error was told
            self._connection.close()
        self._engine.dispose()

    def counts(self, table: Table, keys: Sequence[ForeignKey]) -> list[int]:
        of = self._sql[table.name]
        known = [sa.func.count(sa.case((sa.and_(*(of.c[name].is_not(None) for name in key.columns)),
                                        1))) for key in keys]
        with self._told():
            row = self._connection.execute(
                sa.select(sa.func.count(), *known).select_from(of)).one()
        return [int(value) for value in row]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[Any]:
        of = self._sql[table.name]
        maker = BatchMaker(f"table '{table.name}' of {self.where}", table.columns)
        # With no types of SQLAlchemy's, which would read '2020-01-01 10:00+02:00' as 10 o'clock.
        yield from self._made(sa.select(*(sa.type_coerce(of.c[name], types.NullType()).label(name)
                                          for name in columns)), maker)

    def query(self, text: str) -> Iterator[Any]:
        yield from self._made(text, BatchMaker(f"the query of --task to {self.where}", None))

    def _made(self, statement: Any, maker: BatchMaker) -> Iterator[Any]:
        with self._told():
            result = (self._connection.exec_driver_sql(statement) if isinstance(statement, str)
                      else self._connection.execute(statement))
        if not result.returns_rows:
            raise InputError("the query of --task gives no rows; it must be a SELECT")
        names = list(result.keys())
        # SQLite's driver reads a row when it is asked for it; SQLAlchemy's rows take as long again.
        fetch = result.cursor.fetchmany if self._is_file else result.fetchmany
        while True:
            columns: list[list[Any]] = [[] for _ in names]
            with self._told():
                while len(columns[0]) < ROWS and (rows := fetch(_FETCHED)):
                    for column, values in zip(columns, zip(*rows)):
                        column += values
            if not columns[0]:
                result.close()
                return
            yield maker.batch(names, columns)

    def _reflected(self, schemas: Sequence[str]) -> dict[str, Table]:
        """All tables and views."""
        look, found = sa.inspect(self._connection), {}
        if wrong := [name for name in schemas if name not in look.get_schema_names()]:
            raise InputError(f"plugins.relational.schemas names '{wrong[0]}', which {self.where} "
                             f"does not have; schemas: {', '.join(look.get_schema_names())}")
        wanted: list[str | None] = [*schemas]
        for schema in wanted or [None]:
            for is_view, names in ((False, look.get_table_names(schema)),
                                   (True, look.get_view_names(schema))):
                for name in names:
                    table = self._table(look, schema, name, is_view, schemas)
                    found[table.name] = table
        return found

    def _table(self, look: Any, schema: str | None, name: str, is_view: bool,
               schemas: Sequence[str]) -> Table:
        """A table as it is declared."""
        def full(other_schema: str | None, other: str) -> str:
            return other if other_schema in (None, *schemas[:1]) else f"{other_schema}.{other}"

        columns = {c["name"]: arrow_type(c["type"]) for c in look.get_columns(name, schema)}
        key = () if is_view else look.get_pk_constraint(name, schema)["constrained_columns"]
        foreign = {tuple(each["constrained_columns"]): ForeignKey(
            tuple(each["constrained_columns"]),
            full(each["referred_schema"], each["referred_table"]),
            tuple(each["referred_columns"] or ()))
            for each in (() if is_view else look.get_foreign_keys(name, schema))}
        self._sql[full(schema, name)] = sa.table(
            name, *(sa.column(column) for column in columns), schema=schema)
        return Table(full(schema, name), columns, tuple(key) or None,
                     tuple(foreign[columns] for columns in sorted(foreign)), is_view=is_view)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the database or its driver raises in a line, without the password; a server that
        does not answer in `timeout_s` is given up."""
        late = threading.Event()
        timer = threading.Timer(self._limit_s, self._hang_up, [late])
        timer.daemon = True
        timer.start()
        try:
            yield
        except (sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error, OSError) as error:
            cause = getattr(error, "orig", None) or error
            lines = str(cause).strip().splitlines() or [type(cause).__name__]
            reason = " ".join(line.strip() for line in lines[:2])
            if self._password:
                reason = reason.replace(self._password, "…")
            if late.is_set():
                reason = (f"it did not answer for {self._limit_s:g} s "
                          "(plugins.relational.timeout_s)")
            raise HetaError(f"cannot read {self.where}: {reason}") from None
        finally:
            timer.cancel()

    def _hang_up(self, late: threading.Event) -> None:
        """End the connection to a server, whose driver waits for it however long."""
        late.set()
        driver = self._connection and self._connection.connection.dbapi_connection
        number = getattr(driver, "fileno", None) or getattr(
            getattr(driver, "_sock", None), "fileno", None)
        if number is not None:
            with socket.socket(fileno=os.dup(number())) as opened:
                opened.shutdown(socket.SHUT_RDWR)


def _parsed(url: str) -> sa.URL:
    """A URL without a password; its file, if it is one, is there."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InputError("the URL of the database cannot be read; it must be written as "
                         "sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
    if parsed.password is not None or any(_SECRET.search(name) for name in parsed.query):
        raise InputError("the URL of the database has a password in it, which would come into "
                         f"logs and stores; set the environment variable {PASSWORD}, or what the "
                         "driver reads (PostgreSQL: ~/.pgpass)")
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise InputError(f"there is no database '{parsed.database or ''}'; after sqlite:/// comes "
                         "the path of a file")
    return parsed


def _engine(url: sa.URL, kind: str, password: str, where: str, limit_s: float) -> Any:
    """What connects to a database, to read it alone."""
    if kind == "sqlite":
        url = url.set(database=Path(url.database or "").absolute().as_uri() + "?mode=ro",
                      query={"uri": "true"})
    elif password:
        url = url.set(password=password)
    try:
        engine = sa.create_engine(
            url, connect_args=_arguments(url.get_driver_name(), math.ceil(limit_s)),
            poolclass=sa.pool.NullPool, hide_parameters=True)
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise InputError(f"no driver for {where} is installed ({error}); install "
                         f"dgl-heta-relational[{kind}]") from None
    if kind == "sqlite":  # whose driver would begin no transaction to read
        @event.listens_for(engine, "connect")
        def _connected(connection: Any, _: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def _begun(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
    return engine


def _arguments(driver: str, limit_s: int) -> dict[str, Any]:
    """What a driver is asked for; a host that is gone is noticed in about a minute."""
    connect_s = {"connect_timeout": min(30, limit_s)}
    if driver in ("psycopg2", "psycopg"):
        return {**connect_s, "keepalives_idle": 30, "keepalives_interval": 10,
                "keepalives_count": 3, "options": "-c synchronize_seqscans=off"}
    return {**connect_s, "read_timeout": limit_s + 1} if driver == "pymysql" else {}


def arrow_type(declared: Any) -> Any:
    """Arrow's type for what a column is declared as; None if there is none."""
    unsigned = getattr(declared, "unsigned", False)
    try:
        declared = declared.as_generic()
    except NotImplementedError:  # a type of one database alone
        return None
    if isinstance(declared, types.BigInteger) and unsigned:
        return pa.uint64()
    if isinstance(declared, types.Numeric) and not isinstance(declared, types.Float):
        return pa.int64() if declared.scale == 0 and (declared.precision or 99) < 19 else (
            pa.float64())
    for kind, of in ((types.Boolean, pa.bool_()), (types.Integer, pa.int64()),
                     (types.Float, pa.float64()), (types.Date, pa.date32()),
                     (types.DateTime, pa.timestamp("us", "UTC")), (types.Time, pa.float64()),
                     (types.Interval, pa.float64()), (types.Enum, pa.large_string()),
                     (types.Uuid, pa.large_string()), (types.String, pa.large_string()),
                     (types.LargeBinary, pa.large_binary())):
        if isinstance(declared, kind):
            return of
    return None
