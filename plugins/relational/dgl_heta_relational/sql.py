"""Databases that SQLAlchemy reaches, in one transaction that only reads."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import os
import re
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from dgl_heta import HetaError, InputError
from dgl_heta_relational.settings import RelationalSettings
from dgl_heta_relational.tables import ROWS, TIME, Database, ForeignKey, Table, as_known, by_name

PASSWORD = "HETA_DATABASE_PASSWORD"
"""The environment variable that may have the password."""
CLOCK, TEXT = pa.time64("us"), pa.large_string()
_FETCHED = 1 << 11
"""Rows that are rows of Python at a time: of many more, its collector of garbage takes half."""
_CHAR = 1042
"""PostgreSQL's number of the type CHAR(n), whose blanks at the end count for nothing."""
_SECRET = re.compile(r"(pass(?!file)|pwd|secret|token)\w*\s*=", re.IGNORECASE)


class SqlDatabase(Database):
    """The database of a URL.

    All is read in one transaction: of SQLite, PostgreSQL and InnoDB it sees one moment, whatever
    others write.
    """

    def __init__(self, url: str, settings: RelationalSettings) -> None:
        parsed, self.settings = parsed_url(url), settings
        backend = parsed.get_backend_name()
        kind = backend.replace("mariadb", "mysql")
        self.where = sa.URL.create(backend, host=parsed.host, port=parsed.port,
                                   database=parsed.database).render_as_string()
        self.name = Path(parsed.database or parsed.host or kind).stem
        self._password, self._limit_s = os.environ.get(PASSWORD, ""), settings.timeout_s
        self._connection: Any = None
        self._is_file = kind == "sqlite"
        self.mark = "`" if kind == "mysql" else '"'
        self._engine = self._driver(parsed, kind)
        with ExitStack() as opening, self._told():
            opening.callback(self.close)
            self._connection = self._engine.connect().execution_options(
                stream_results=True, max_row_buffer=ROWS, postgresql_readonly=True)
            if self._is_file:  # SQLite, whose driver would begin no transaction to read
                self._connection.exec_driver_sql("BEGIN")
            elif kind == "mysql":  # which gives TIMESTAMPs in the zone of the session
                self._connection.exec_driver_sql("SET time_zone = '+00:00'")
            self.tables = by_name(self._reflected())
            opening.pop_all()  # it stays open

    def close(self) -> None:
        with suppress(sa.exc.SQLAlchemyError):  # of a server that is gone, whose error was told
            if self._connection is not None:
                self._connection.close()

    def query(self, text: str, what: str, declared: Mapping[str, Any] | None = None
              ) -> Iterator[Any]:
        with self._told():
            result = self._connection.exec_driver_sql(
                text, execution_options={"no_parameters": True})
        if not result.returns_rows:
            raise InputError(f"{what} gives no rows; it must be a SELECT")
        names = list(result.keys())
        makers = [Values(f"column '{name}' of {what} of {self.where}",
                         (declared[name] or TEXT) if declared else None) for name in names]
        padded = [i for i, column in enumerate(result.cursor.description) if column[1] == _CHAR]
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
            for i in padded:
                values[i] = [value and value.rstrip(" ") for value in values[i]]
            yield pa.record_batch([maker.array(each) for maker, each in zip(makers, values)], names)

    def _reflected(self) -> Iterator[Table]:
        """All tables and views, as they are declared."""
        look, schemas = sa.inspect(self._connection), self.settings.schemas
        self.check_schemas(look.get_schema_names())

        def full(schema: str | None, name: str) -> str:
            return name if schema in (None, *schemas[:1]) else f"{schema}.{name}"

        for of in (*schemas,) or (None,):
            with warnings.catch_warnings():
                # SQLite's keys are right, but SQLAlchemy does not find their names where their
                # columns are written in another case; MySQL's come after it. Columns of no known
                # type are named where they are not used.
                warnings.filterwarnings("ignore", ".*SQL-parsed foreign key|Unknown schema "
                                        "content|Did not recognize type", sa.exc.SAWarning)
                every = look.get_multi_columns(of, kind=sa.engine.reflection.ObjectKind.ANY)
                keys = look.get_multi_pk_constraint(of)
                foreign = look.get_multi_foreign_keys(of)
            if self.mark == "`":
                foreign = self._keys(of, keys)
                for column in itertools.chain(*every.values()):
                    column["name"] = column["name"].replace("``", "`")
            parts = self._partitions(look.default_schema_name)
            for (schema, name), columns in every.items():
                if (schema, name) in parts:
                    continue
                key = keys.get((schema, name), {}).get("constrained_columns")
                own = [ForeignKey(tuple(each["constrained_columns"]),
                                  full(each["referred_schema"], each["referred_table"]),
                                  tuple(each["referred_columns"] or ()))
                       for each in foreign.get((schema, name), ())
                       if (each["referred_schema"], each["referred_table"]) not in parts]
                yield Table(full(schema, name),
                            ".".join(self.quoted(each) for each in (schema, name) if each),
                            {c["name"]: arrow_type(c["type"]) for c in columns},
                            tuple(key or ()) or None,
                            tuple(sorted(own, key=lambda key: key.columns)),
                            is_view=(schema, name) not in keys)

    def _partitions(self, own: str | None) -> set[tuple[str | None, str]]:
        """The parts of PostgreSQL's partitioned tables, whose rows are in those, too. A key to such
        a table is one to each of its parts besides."""
        if self._engine.dialect.name != "postgresql":
            return set()
        return {(schema, name) for in_, name in self._connection.exec_driver_sql(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE relispartition")
            for schema in ([in_, None] if in_ == own else [in_])}

    def _keys(self, of: str | None, primary: dict[Any, Any]) -> dict[Any, list[Any]]:
        """Foreign keys of MySQL's tables as SQLAlchemy gives them, and into `primary` those.

        SQLAlchemy reads the text of SHOW CREATE TABLE, and loses keys whose names are odd there.
        """
        found: dict[Any, Any] = {}
        for table, constraint, column, schema, other, referred in self._connection.execute(sa.text(
                "SELECT table_name, constraint_name, column_name, nullif(referenced_table_schema, "
                "if(:of IS NULL, database(), NULL)), referenced_table_name, referenced_column_name "
                "FROM information_schema.key_column_usage WHERE table_schema = "
                "coalesce(:of, database()) ORDER BY ordinal_position"), {"of": of}):
            key = found.setdefault((table, constraint, other), {
                "referred_schema": schema, "referred_table": other,
                "constrained_columns": [], "referred_columns": []})
            key["constrained_columns"].append(column)
            key["referred_columns"].append(referred)
        foreign: dict[Any, list[Any]] = {}
        for (table, constraint, other), key in found.items():
            if other is not None:
                foreign.setdefault((of, table), []).append(key)
            elif constraint == "PRIMARY":
                primary[of, table] = key
        return foreign

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the database or its driver raises in a line, without the password; a server that
        does not answer in `timeout_s` is given up."""
        timer, began = threading.Timer(self._limit_s, self._hang_up), time.monotonic()
        timer.daemon = True
        timer.start()
        try:
            yield
        except (sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error, OSError,
                ValueError, OverflowError) as error:  # a time before Christ, which Python has not
            cause = getattr(error, "orig", None) or error
            reason = " ".join(str(cause).split()) or type(cause).__name__
            if self._password:
                reason = reason.replace(self._password, "…")
            if time.monotonic() - began >= self._limit_s:
                reason = (f"it did not answer for {self._limit_s:g} s "
                          "(plugins.relational.timeout_s)")
            raise HetaError(f"cannot read {self.where}: {reason[:300]}") from None
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        """End the connection to a server, where the driver would wait for it however long."""
        driver = self._connection and self._connection.connection.dbapi_connection
        if hasattr(driver, "fileno"):
            with socket.socket(fileno=os.dup(driver.fileno())) as opened:
                opened.shutdown(socket.SHUT_RDWR)

    def _driver(self, url: sa.URL, kind: str) -> Any:
        """What connects to a database, to read it alone; that a host is gone is noticed in about a
        minute."""
        driver, arguments = url.get_driver_name(), dict[str, Any]()
        if kind == "sqlite":
            url = url.set(database=Path(url.database or "").absolute().as_uri() + "?mode=ro",
                          query={"uri": "true"})
        elif self._password:
            url = url.set(password=self._password)
        if driver in ("psycopg2", "psycopg"):
            arguments = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
                         "options": "-c synchronize_seqscans=off"}
        elif kind == "mysql":
            arguments = {"init_command": "SET SESSION TRANSACTION READ ONLY"}
        if arguments:
            arguments["connect_timeout"] = min(30, math.ceil(self._limit_s))
        if driver == "pymysql":
            arguments["read_timeout"] = self._limit_s
        try:
            return sa.create_engine(
                url, connect_args=arguments, poolclass=sa.pool.NullPool, hide_parameters=True,
                isolation_level="AUTOCOMMIT" if self._is_file else "REPEATABLE READ")
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            raise InputError(f"no driver for {self.where} is installed ({error}); install "
                             f"dgl-heta-relational[{kind}]") from None


def parsed_url(url: str) -> sa.URL:
    """A URL without a password; its file, if it is one, is there."""
    secret = InputError("the URL of the database has a password in it, which would come into logs "
                        f"and stores; set the environment variable {PASSWORD}, or what the driver "
                        "reads (PostgreSQL: ~/.pgpass)")
    if _SECRET.search(unquote(url)):
        raise secret
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InputError("the URL of the database cannot be read; it must be written as "
                         "sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
    if parsed.password is not None:
        raise secret
    kind, file = parsed.get_backend_name(), parsed.database or ""
    if kind in ("sqlite", "duckdb") and not Path(file).is_file():
        raise InputError(f"there is no database '{file}'; after {kind}:/// comes the path of a "
                         "file")
    if kind == "duckdb" and parsed.query:
        raise InputError("a URL of DuckDB has no options; it must be written as duckdb:///FILE")
    return parsed


def arrow_type(declared: Any) -> Any:
    """Arrow's type for what a column is declared as; None if there is none."""
    if isinstance(declared, sa.types.BigInteger) and getattr(declared, "unsigned", False):
        return pa.uint64()
    try:
        declared = declared.as_generic()
        kind = declared.python_type
    except NotImplementedError:  # a type of one database alone
        return None
    if kind is decimal.Decimal:
        if declared.scale == 0 and declared.precision:
            return pa.int64() if declared.precision < 19 else pa.decimal128(38)
        return pa.float64()
    return _ARROW.get(kind)


_ARROW = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), datetime.date: TIME,
          datetime.datetime: TIME, datetime.time: CLOCK, datetime.timedelta: pa.float64(),
          str: TEXT, uuid.UUID: TEXT, bytes: pa.large_binary()}
"""Arrow's type for one of Python's."""


class Values:
    """Makes arrays of the values of a column, times as instants: those without a zone as of UTC.

    `what` the column is is for messages; `kind` is the type of Arrow's that it is declared as,
    None: what the values say.
    """

    def __init__(self, what: str, kind: Any) -> None:
        self._what, self._kind = what, kind
        self._forms = [pa.timestamp("us"), TIME]  # of times as text: without a zone, or with one

    def array(self, values: Sequence[Any]) -> Any:
        """An array of some values; one that is not what the column is declared as is refused, and
        so are times with a zone beside times without."""
        try:
            return self._made(values, self._kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            if len(values) == 1:
                text = repr(values[0])
                form = (", a time as ISO 8601, 2013-01-01 05:00:00, all with a zone or none; where "
                        "numbers are times, read a view that converts them" * (self._kind == TIME))
                shown = text if len(text) < 80 else text[:77] + "…"
                raise InputError(
                    f"{self._what} has the value {shown}, which is of no type of numbers, times or "
                    "text; CAST it" if self._kind is None else
                    f"{self._what} is declared as {self._kind}, but has the value {shown}; correct "
                    f"it{form}, or declare the column as what it holds") from None
        for value in values:  # the first that is wrong by itself is told
            self.array([value])
        raise InputError(f"{self._what} has values of different types")

    def _made(self, values: Sequence[Any], kind: Any) -> Any:
        if kind == TEXT:
            if any(isinstance(value, bytes | memoryview) for value in values):
                raise TypeError("bytes are no text")
            return pa.array([value if value is None else str(value) for value in values], TEXT)
        if kind in (pa.uint64(), pa.large_binary()):  # of values that tell less
            return pa.array(values, kind)
        found = as_known(pa.array(values))
        if pa.types.is_temporal(found.type) and len({
                (type(value), getattr(value, "tzinfo", None) is None)
                for value in values if value is not None}) > 1:
            raise TypeError("Arrow would cut times beside dates, and take all for times of a zone")
        if kind is None:  # with as many digits as a batch happens to need
            return pc.cast(found, pa.float64()) if pa.types.is_decimal(found.type) else found
        if kind == CLOCK:
            if found.type == TEXT:  # SQLite has no times
                moments = pc.binary_join_element_wise(
                    pa.scalar("1970-01-01", TEXT), found, pa.scalar(" ", TEXT))
                found = as_known(pc.cast(pc.cast(moments, pa.timestamp("us")), CLOCK))
            kind = pa.float64()
        if found.null_count == len(found):
            return pa.nulls(len(found), kind)
        if kind == TIME and found.type == TEXT:
            return self._written(found)
        if found.type == TEXT or (kind == TIME) != pa.types.is_temporal(found.type):
            raise TypeError("text is no number, and no number is a time")
        made = pc.cast(found, kind)
        if kind == pa.bool_() and not pc.cast(made, found.type).equals(found):
            raise TypeError("a truth value is 0 or 1")
        return made

    def _written(self, text: Any) -> Any:
        """Times as ISO 8601 text, all of the form of the first ones."""
        for form in self._forms:
            with suppress(pa.ArrowInvalid):
                times = pc.cast(pc.cast(text, form), TIME)
                self._forms = [form]
                return times
        raise ValueError("no time of the column's form")
