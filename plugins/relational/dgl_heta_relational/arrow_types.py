"""Columns of files and of DuckDB, which have Arrow's types, in the few that readers know."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta.tools import plain_column, sort_of
from dgl_heta_relational.values import TIME

_KINDS = {"text": pa.large_string(), "whole": pa.int64(), "float": pa.float64(),
          "truth": pa.bool_(), "bytes": pa.large_binary()}


def declared(kind: Any) -> Any:
    """The type that :func:`as_declared` makes of one of Arrow's; None where readers know none."""
    if pa.types.is_dictionary(kind):
        return declared(kind.value_type)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.float64()
    sort = sort_of(kind)
    if sort == "time":
        return pa.date32() if pa.types.is_date(kind) else TIME
    return kind if sort in ("decimal", "list") or kind == pa.uint64() else _KINDS.get(sort)


def as_declared(batch: Any) -> Any:
    """A batch with its columns in the types that readers know; others as they are."""
    return pa.record_batch([_known(column) for column in batch.columns], batch.schema.names)


def _known(column: Any) -> Any:
    kind, column = declared(column.type), plain_column(column)
    if pa.types.is_duration(column.type) or pa.types.is_time(column.type):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        whole = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
        return pc.divide(pc.cast(pc.cast(column, whole), pa.float64()), float(per_second))
    if pa.types.is_timestamp(column.type):  # what is finer than microseconds is cut
        zone = column.type.tz
        column = pc.cast(column, pa.timestamp("us", zone), safe=False)
        return pc.cast(pc.cast(column, pa.timestamp("us")) if zone is None else column, TIME)
    if pa.types.is_floating(column.type):  # as pandas has a number that is missing
        column = pc.if_else(pc.is_nan(column), None, column)
    return column if kind is None or pa.types.is_nested(kind) else pc.cast(column, kind)
