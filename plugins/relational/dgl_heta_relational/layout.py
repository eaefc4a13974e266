"""Which tables are node types, which keys are relations: known before a row is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dgl_heta import InputError, Relation, Schema
from dgl_heta.tools import REVERSE, listing, nearest
from dgl_heta_relational.settings import TableSettings
from dgl_heta_relational.tables import Database, ForeignKey, Table


@dataclass(frozen=True)
class Layout:
    """A graph of tables.

    Attributes
    ----------
    nodes : tables that are node types, by name.
    tables : those, and after them pure link tables: two foreign keys, and nothing else but a time.
    relations : each with the table and the foreign keys that its edges are: one, from the table's
        rows, or both of a link table. Without reverses.
    """

    nodes: Mapping[str, Table]
    tables: Mapping[str, Table]
    relations: Mapping[Relation, tuple[Table, tuple[ForeignKey, ...]]]

    def schema(self, database: Database) -> Schema:
        """The schema as the database counts it; keys to rows that are not there count, too."""
        counts: dict[str, int] = {}
        edges: dict[Relation, int] = {}
        for name, table in self.tables.items():
            own = {relation: [column for key in keys for column in key.columns]
                   for relation, (of, keys) in self.relations.items() if of is table}
            counts[name], *known = database.counts(table, [*own.values()])
            edges |= {relation: count for relation, count in zip(own, known) if count}
        edges |= {Relation(r.dst, REVERSE + r.etype, r.src): n for r, n in edges.items()}
        joined = {ntype for r in edges for ntype in (r.src, r.dst)}
        return Schema({name: n for name, n in counts.items() if n and name in joined}, edges)


def make_layout(database: Database) -> Layout:
    """The graph that a database is by its keys and its settings.

    Tables without a primary key are refused, and so are foreign keys to views, to nothing, or of
    columns that do not fit, and settings of tables or columns that there are not.
    """
    tables = {name: _settled(table, database) for name, table in _chosen(database).items()}
    for name, table in tables.items():
        keys = [_followed(table, key, tables, database) for key in table.foreign]
        tables[name] = replace(table, foreign=tuple(dict.fromkeys(filter(None, keys))),
                               aside=tuple(table.foreign_columns))
    referred = {key.table for table in tables.values() for key in table.foreign}
    links = {name: table for name, table in tables.items()
             if name not in referred and _is_link(table)}
    nodes = {name: table for name, table in tables.items() if name not in links}
    relations: list[tuple[Relation, tuple[Table, tuple[ForeignKey, ...]]]] = [
        (Relation(name, key.name, key.table), (table, (key,)))
        for name, table in nodes.items() for key in table.foreign]
    relations += [(Relation(table.foreign[0].table, name, table.foreign[1].table),
                   (table, table.foreign)) for name, table in links.items()]
    if loose := [name for name, table in nodes.items() if table.key is None]:
        raise InputError(f"table '{loose[0]}' of {database.where} has no primary key; name its "
                         f"columns by plugins.relational.tables.\"{loose[0]}\".key (an empty list: "
                         "its rows need no names), or leave it out by plugins.relational.skip")
    if not relations:
        raise InputError(f"no table of {database.where} has a foreign key to another, so there are "
                         "no relations; say them by plugins.relational.tables.NAME.foreign = "
                         "{column = \"table\"}")
    for number, (relation, (table, _)) in enumerate(relations):
        if relation in dict(relations[:number]):
            raise InputError(f"two relations of {database.where} would be '{relation.src} "
                             f"{relation.etype} {relation.dst}', of foreign keys to other columns "
                             "or of a link table with the name of such a column; leave table "
                             f"'{table.name}' out by plugins.relational.skip, or say which key "
                             f"counts by plugins.relational.tables.\"{table.name}\".foreign")
    return Layout(nodes, {**nodes, **links}, dict(relations))


def _chosen(database: Database) -> dict[str, Table]:
    """The tables that are read: all without views, or those that are named."""
    known, settings = database.tables, database.settings
    for name in (*settings.only, *settings.skip, *settings.tables):
        if name not in known:
            raise InputError(f"plugins.relational names table '{name}', which {database.where} "
                             f"does not have; tables: {listing(known)}" + nearest(name, known))
    wanted = settings.only or [name for name, table in known.items()
                               if not table.is_view or name in settings.tables]
    tables = {name: known[name] for name in sorted({*wanted} - {*settings.skip})}
    if not tables:
        raise InputError(f"{database.where} has no tables to read; it has: {listing(known)}")
    return tables


def _settled(table: Table, database: Database) -> Table:
    """A table with what the settings say of it."""
    said = database.settings.tables.get(table.name, TableSettings())
    further = [ForeignKey((text,) if text in table.columns else
                          tuple(part.strip() for part in text.split(",")), other)
               for text, other in said.foreign.items()]
    settled = {key.columns for key in further}
    foreign = (*(key for key in table.foreign if key.columns not in settled), *further)
    table = replace(table, foreign=foreign, time=said.time, ways=said.features,
                    key=table.key if said.key is None else tuple(said.key))
    named = [*(table.key or ()), *table.foreign_columns, *said.features,
             *([table.time] if table.time else [])]
    for column in named:
        if column not in table.columns:
            raise InputError(f"table '{table.name}' of {database.where} has no column '{column}'; "
                             f"its columns: {listing(table.columns)}"
                             + nearest(column, table.columns))
    if table.time and str(table.columns[table.time]).split("[")[0] not in ("timestamp", "date32"):
        kind = {"large_string": "text", "None": "what is no type"}.get(
            str(table.columns[table.time]), str(table.declared[table.time]))
        raise InputError(f"column '{table.time}' of table '{table.name}' is to be its time, but "
                         f"the database declares it as {kind}; it must be a date or a timestamp: "
                         "declare it so, or read a view that converts it")
    return table


def _followed(table: Table, key: ForeignKey, tables: Mapping[str, Table], database: Database
              ) -> ForeignKey | None:
    """A foreign key with the columns that it refers to, None if it leads to a table that is not
    read; refuse what cannot be right."""
    what = f"foreign key '{key.name}' of table '{table.name}'"
    other = database.tables.get(key.table)
    if other is None:
        raise InputError(f"{what} is to '{key.table}', which {database.where} does not have; "
                         f"tables: {listing(database.tables)}"
                         + nearest(key.table, database.tables))
    if key.table not in tables:
        if other.is_view:
            raise InputError(f"{what} is to '{key.table}', which is a view; name the table behind "
                             "it, or have the view read by giving it a key: plugins.relational."
                             f"tables.\"{key.table}\".key")
        return None
    referred = key.referred or tables[key.table].key or ()
    if len(referred) != len(key.columns):
        raise InputError(f"{what} has {len(key.columns)} columns, but the primary key of table "
                         f"'{key.table}' has {len(referred)}: {listing(referred)}")
    return replace(key, referred=referred)


def _is_link(table: Table) -> bool:
    """Return whether a table is two foreign keys and nothing else but a time."""
    linked = {*table.foreign_columns}
    return (len(table.foreign) == 2 and {*table.columns} <= linked | {table.time}
            and {*(table.key or ())} <= linked)
