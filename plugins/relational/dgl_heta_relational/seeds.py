"""The table of seeds that `--task` makes: (id, time, label), one row a prediction."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgl_heta import GraphSource, HetaError, InputError, Relation
from dgl_heta.tools import column_seconds, listing, replacing, sort_of, split_words
from dgl_heta_relational.columns import Feature, Spool
from dgl_heta_relational.tables import Database, ForeignKey, Table

log = logging.getLogger("dgl_heta")
MARK = b"dgl-heta seeds"
"""What is in the file's metadata: such a file may be replaced."""
_PIECE = 1 << 22
"""Ids of nodes that seeds are compared with at once."""
_MARKS = re.compile(r"[(),]|\b(?:select|from|where|on|by|having)\b", re.IGNORECASE)
"""What an expression of a query ends at, and parentheses, within which it does not."""


@dataclass(frozen=True)
class Seeds:
    """A table of seeds that a query gave, in a file that has no name any more.

    `ids` are those of the rows, as text; `until` is the last time of training, in seconds since
    1970, if a column `split` says it.
    """

    path: Path
    content: Any
    ids: Any
    until: int | None

    def check(self, source: GraphSource, ntype: str) -> None:
        """Refuse a row that is of no node of a type."""
        count, ids = source.node_counts[ntype], source.node_ids.get(ntype)
        left = pc.unique(self.ids)
        for low in range(0, count, _PIECE):
            high = min(low + _PIECE, count)
            known = (pc.cast(pa.array(np.arange(low, high)), pa.large_string()) if ids is None else
                     ids.to_arrow().slice(low, high - low))
            left = left.filter(pc.invert(pc.is_in(left, value_set=known)))
        wrong = np.flatnonzero(pc.is_in(self.ids, value_set=left))
        if len(wrong):
            raise InputError(
                f"row {wrong[0] + 1} of the query of --task has the id '{self.ids[wrong[0]]}', "
                f"which is the id of no node of type '{ntype}'; {len(wrong):,} of "
                f"{len(self.ids):,} rows have such")

    def write(self) -> None:
        """Put the table where it is to be, whole or not at all."""
        try:
            with replacing(self.path) as new:
                new.write_bytes(memoryview(self.content))
        except OSError as error:
            raise HetaError(f"cannot write {self.path}, the table of --task: {error}; run the "
                            "command again, with --overwrite") from None


def read_seeds(database: Database, query: str, scratch: Path) -> Seeds:
    """Read what a query gives, for the Parquet file that the settings name; nothing is written but
    the file `scratch`.

    Other columns than id, time, label and split are refused, and so are empty values, a file of
    somebody else's, and a directory that is not there.
    """
    path, ours = database.settings.seeds, False
    with suppress(OSError, pa.ArrowException):
        ours = MARK in (pq.read_schema(path).metadata or {})
    if path.exists() and not ours:
        raise InputError(f"{path} is there, and --task did not make it; choose another file for "
                         "its table by plugins.relational.seeds")
    if not path.parent.is_dir():
        raise InputError(f"plugins.relational.seeds is {path}, but there is no directory "
                         f"{path.parent}; make it, or choose another file for the table of --task")
    batches, rows = database.query(query, "the query of --task"), 0
    first = next(batches, None)
    if first is None:
        raise InputError("the query of --task gives no rows; it must give one for each prediction")
    spool = Spool(scratch, "the query of --task", _schema(first, query))
    with closing(spool):
        for batch in itertools.chain([first], batches):
            try:
                spool.write(batch)
            except (pa.ArrowException, ValueError):
                raise InputError("columns of the query of --task have values of different types "
                                 f"after row {rows:,}; CAST them") from None
            rows += batch.num_rows
    table = spool.columns()
    (ids, _), (_, times) = table.ids("id"), column_seconds(table, "time")
    trained = times[split_words(table, "split") == 0] if "split" in table.names else times[:0]
    with pa.memory_map(str(scratch)) as file:
        return Seeds(path, file.read_buffer(), ids, int(trained.max()) if len(trained) else None)


def _schema(batch: Any, query: str) -> Any:
    """The schema of the table of a query, by its first rows."""
    names = batch.schema.names
    if {*names} - {"split"} != {"id", "time", "label"} or len({*names}) != len(names):
        raise InputError(f"the query of --task gives the columns {', '.join(names)}; it must give "
                         "id, time and label, and may give split: say SELECT … AS id, … AS time, "
                         "… AS label")
    time = batch.column("time")
    if wrong := [column for column in batch.schema if sort_of(column.type) == "other"]:
        raise InputError(f"'{wrong[0].name}' of the query of --task is of the type "
                         f"{wrong[0].type}, which no reader knows; CAST it")
    if sort_of(time.type) not in ("time", "text"):
        raise InputError(f"'time' of the query of --task is such as {time[0]}; it must be a date, "
                         "a timestamp, or text as ISO 8601, 2013-01-01 05:00:00")
    return batch.schema.with_metadata({MARK: query.encode()})


def warn_of_answers(query: str, tables: Iterable[tuple[Table, Sequence[Feature]]],
                    relations: Mapping[Relation, tuple[Table, Sequence[ForeignKey]]]) -> None:
    """Log a warning for each table of the graph that a query names, if features may say the label,
    and for each relation whose foreign key is named in what the query calls label.

    A table with a time is there from then on, so of it only columns count that the query names.
    """
    text, label = (re.sub(r"\bas\s+\w+", "", part, flags=re.IGNORECASE)
                   for part in (query, _of_label(query)))

    def named(word: str, text: str = text) -> bool:
        return re.search(rf"(?<!\w){re.escape(word)}(?!\w)(?!\s+by\b)", text,
                         re.IGNORECASE) is not None

    for table, features in tables:
        columns = [f.column for f in features if f.column != table.time and (
            f.said or not f.constant) and (not table.time or named(f.column))]
        if columns and named(table.name):
            own = ", ".join(f'{column} = "none"' for column in columns)
            log.warning(
                "table '%s' of the query of --task is in the graph with its columns %s as "
                "features; where they say the label, leave it out by plugins.relational.skip, or "
                "them by plugins.relational.tables.\"%s\".features = {%s}", table.name,
                listing(columns), table.name, own if len(columns) < 4 else 'COLUMN = "none"')
    for relation, (table, keys) in relations.items():
        columns = [column for key in keys for column in key.columns if named(column, label)]
        if columns and named(table.name):
            log.warning(
                "the label of the query of --task is made of %s of table '%s', a foreign key, and "
                "its relation '%s' is in the graph; where it says the label, leave '%s' out by "
                "plugins.relational.skip, or predict links (task.relation)", listing(columns),
                table.name, relation, keys[0].table if len(keys) == 1 else table.name)


def _of_label(query: str) -> str:
    """What a query calls label: of each such name the text before it, back to a comma or SELECT,
    without the conditions of queries in it."""
    parts = []
    for found in re.finditer(r"\blabel\b", query, re.IGNORECASE):
        begin = depth = 0
        for mark in reversed([*_MARKS.finditer(query, 0, found.start())]):
            depth += {")": 1, "(": -1}.get(mark[0], 0)
            if depth < 0 or (depth == 0 and mark[0] not in "()"):
                begin = mark.end()
                break
        parts.append(re.sub(r"\b(?:where|on)\b[^()]*", "", query[begin:found.end()],
                            flags=re.IGNORECASE))
    return "\n".join(parts)
