"""Databases that SQLAlchemy reaches, in one transaction that only reads."""

from __future__ import annotations

import datetime
import decimal
import math
import os
import re
import socket
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import types

from dgl_heta import HetaError, InputError
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import ROWS, Database, ForeignKey, Table, in_declared_case
from dgl_heta_relational.values import TEXT, TIME, BatchMaker

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
        self._is_file = kind == "sqlite"
        self.names = {}
        self.mark = "`" if kind == "mysql" else '"'
        self._engine = _engine(parsed, kind, self._password, self.where, self._limit_s)
        try:
            with self._told():
                self._connection = self._engine.connect().execution_options(
                    stream_results=True, max_row_buffer=ROWS, no_parameters=True,
                    **({"postgresql_readonly": True} if kind == "postgresql" else {}))
                if self._is_file:  # SQLite, whose driver would begin no transaction to read
                    self._connection.exec_driver_sql("BEGIN")
                self.tables = in_declared_case(self._reflected(settings.schemas))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(sa.exc.SQLAlchemyError):  # of a server that is gone, whose error was told
            if self._connection is not None:
                self._connection.close()
        self._engine.dispose()

    def _read(self, query: str, what: str, columns: Mapping[str, Any] | None) -> Iterator[Any]:
        maker = BatchMaker(f"{what} of {self.where}", columns)
        with self._told():
            result = self._connection.exec_driver_sql(query)
        if not result.returns_rows:
            raise InputError(f"{what} gives no rows; it must be a SELECT")
        names = list(result.keys())
        # SQLite's driver reads a row when it is asked for it; SQLAlchemy's rows take as long again.
        fetch = result.cursor.fetchmany if self._is_file else result.fetchmany
        while True:
            values: list[list[Any]] = [[] for _ in names]
            with self._told():
                while len(values[0]) < ROWS and (rows := fetch(_FETCHED)):
                    for column, more in zip(values, zip(*rows)):
                        column += more
            if not values[0]:
                result.close()
                return
            yield maker.batch(names, values)

    def _reflected(self, schemas: Sequence[str]) -> Iterator[Table]:
        """All tables and views, as they are declared."""
        look = sa.inspect(self._connection)
        if wrong := [name for name in schemas if name not in look.get_schema_names()]:
            raise InputError(f"plugins.relational.schemas names '{wrong[0]}', which {self.where} "
                             f"does not have; schemas: {', '.join(look.get_schema_names())}")

        def full(schema: str | None, name: str) -> str:
            return name if schema in (None, *schemas[:1]) else f"{schema}.{name}"

        for of in (*schemas,) or (None,):
            every = look.get_multi_columns(of, kind=sa.engine.reflection.ObjectKind.ANY)
            keys = look.get_multi_pk_constraint(of)
            with warnings.catch_warnings():
                # SQLite's keys are right, but SQLAlchemy does not find their names where their
                # columns are written in another case.
                warnings.filterwarnings("ignore", ".*SQL-parsed foreign key", sa.exc.SAWarning)
                foreign = look.get_multi_foreign_keys(of)
            for (schema, name), columns in every.items():
                key = keys.get((schema, name), {}).get("constrained_columns")
                self.names[full(schema, name)] = ".".join(
                    self.quoted(each) for each in (schema, name) if each)
                own = {tuple(each["constrained_columns"]): ForeignKey(
                    tuple(each["constrained_columns"]),
                    full(each["referred_schema"], each["referred_table"]),
                    tuple(each["referred_columns"] or ()))
                    for each in foreign.get((schema, name), ())}
                yield Table(full(schema, name), {c["name"]: arrow_type(c["type"]) for c in columns},
                            tuple(key or ()) or None, tuple(own[c] for c in sorted(own)),
                            is_view=(schema, name) not in keys)

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
        except (sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error, OSError,
                ValueError, OverflowError) as error:  # a time before Christ, which Python has not
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
        return sa.create_engine(
            url, connect_args=_arguments(kind, url.get_driver_name(), math.ceil(limit_s)),
            isolation_level="AUTOCOMMIT" if kind == "sqlite" else "REPEATABLE READ",
            poolclass=sa.pool.NullPool, hide_parameters=True)
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise InputError(f"no driver for {where} is installed ({error}); install "
                         f"dgl-heta-relational[{kind}]") from None


def _arguments(kind: str, driver: str, limit_s: int) -> dict[str, Any]:
    """What a driver is asked for; a host that is gone is noticed in about a minute."""
    connect_s = {"connect_timeout": min(30, limit_s)}
    if driver in ("psycopg2", "psycopg"):
        return {**connect_s, "keepalives_idle": 30, "keepalives_interval": 10,
                "keepalives_count": 3, "options": "-c synchronize_seqscans=off"}
    if kind == "mysql":
        return {**connect_s, "init_command": "SET SESSION TRANSACTION READ ONLY",
                **({"read_timeout": limit_s + 1} if driver == "pymysql" else {})}
    return {}


def arrow_type(declared: Any) -> Any:
    """Arrow's type for what a column is declared as; None if there is none."""
    unsigned = getattr(declared, "unsigned", False)
    try:
        declared = declared.as_generic()
        kind = declared.python_type
    except NotImplementedError:  # a type of one database alone
        return None
    if isinstance(declared, types.BigInteger) and unsigned:
        return pa.uint64()
    if kind is decimal.Decimal:
        if declared.scale == 0 and declared.precision:
            return pa.int64() if declared.precision < 19 else pa.decimal128(38)
        return pa.float64()
    return _ARROW.get(kind)


_ARROW = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), datetime.date: TIME,
          datetime.datetime: TIME, datetime.time: pa.float64(), datetime.timedelta: pa.float64(),
          str: TEXT, uuid.UUID: TEXT, bytes: pa.large_binary()}
"""Arrow's type for one of Python's."""
