"""A directory of edge lists with a `metadata.json`.

::

    {"name": "mag",
     "nodes": {"paper": {"count": 736389,
                         "arrays": {"feat": "nodes/feat.npy", "label": "nodes/label.npy",
                                    "train_mask": "nodes/train.npy"}},
               "author": {"count": 1134649}},
     "edges": [{"src": "author", "etype": "writes", "dst": "paper",
                "files": ["writes-0.npy", "writes-1.csv.gz",
                          {"src_file": "writes-2-src.npy", "dst_file": "writes-2-dst.npy"}]}],
     "task": {"target": "paper", "num_classes": 349, "label": "label"}}

Optional are `arrays`, `task`, and in it `kind` (classification, multilabel or regression),
`num_classes` (then: largest label plus one), `label` and `unlabelled` (a value of labels, besides
NaN, that stands for none). Paths are relative to the directory. An edge file is a `.npy` integer
array of shape (2, E), a text (CSV) with two columns and an optional header line, a `.parquet` with
columns `src` and `dst`, or a pair of one-dimensional `.npy` files; the files of a relation are
read one after the other, also those of a directory or a name with wildcards.

Nodes may have ids of their own, text, numbers or bytes: `"paper": {"table": "papers.parquet"}` has
a row per node with its column `id` (or `"id": "doi"`), and `"author": {}` has the nodes that edges
name. The edges of such types are tables, too (:mod:`dgl_heta.graph.readers.table_reader`): columns
`src` and `dst`, or `"columns": ["who", "what"]` beside `files`. Labels and masks may be columns of
the table (:mod:`dgl_heta.graph.readers.columns`), and so may be what features are made of
(`features`: :mod:`dgl_heta.graph.readers.table_features`) and what says the `split` of a task
(:mod:`dgl_heta.graph.readers.splits`). A column of a table may also say the type of each node, and
of each edge the relation and the types of its ends (:mod:`dgl_heta.graph.readers.named`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import HetaError, InputError, listing, nearest
from dgl_heta.graph.readers.array_files import (
    NpyEdges,
    files_of,
    inside,
    open_edges,
    open_npy,
)
from dgl_heta.graph.readers.arrays import node_array, node_task
from dgl_heta.graph.readers.column_files import ENDINGS
from dgl_heta.graph.readers.columns import Labels, task_columns
from dgl_heta.graph.readers.edge_tables import ALL, Column, EdgeTables
from dgl_heta.graph.readers.entries import (
    TEXT_KEYS,
    check_keys,
    count_of,
    files_in,
    name_of,
    name_or_column,
    short,
    text_form,
)
from dgl_heta.graph.readers.named import NamedNodes
from dgl_heta.graph.readers.sizes import parse_json, read_text
from dgl_heta.graph.readers.splits import masks_of
from dgl_heta.graph.readers.table_features import table_features
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, EdgeSource, GraphSource, JoinedEdges, Task
from dgl_heta.system.disk import is_full
from dgl_heta.system.remote_files import file_path, for_each

METADATA = "metadata.json"


def read_edge_files(directory: str | Path, memory_mb: int = 512) -> GraphSource:
    """Describe the graph in `directory`, a path or a URL. Edges stay in their files, node arrays
    are mapped; what is in object storage is read in ranges.

    Edges of nodes with ids of their own are numbered here, by temporary files (`TMPDIR`); the
    numbers stay in one of them, mapped and without a name, 8 bytes an edge. `memory_mb` is memory
    for ids.

    Raises
    ------
    InputError
        Anything in `metadata.json` or the files that is not as described above.
    HetaError
        There is too little memory or disk for ids.
    """
    directory = file_path(directory)
    path = directory / METADATA
    data = parse_json(read_text(path), path)
    check_keys(data, str(path), required=("name", "nodes", "edges"), optional=("task",))
    name = name_of(data["name"], f"{path}: 'name'")
    if not isinstance(data["nodes"], dict) or not data["nodes"]:
        raise InputError(f"{path}: 'nodes' must be an object of node type: {{\"count\": …}}")
    if not isinstance(data["edges"], list) or not data["edges"]:
        raise InputError(f"{path}: 'edges' must be a list of {{src, etype, dst, files}}")
    try:
        with ExitStack() as reading:
            nodes = _Nodes(path, data["nodes"], NamedNodes(reading, memory_mb))
            sources = _read_edges(nodes, data["edges"])
            node_ids = nodes.named.node_ids()
    except OSError as error:
        if not is_full(error):
            raise
        raise HetaError("no space left on the disk: ids of nodes are sorted in "
                        f"{tempfile.gettempdir()} (TMPDIR)") from None
    task, info = _read_task(nodes, data["task"]) if "task" in data else (None, {})
    info = {"format": "edge files", "path": str(directory), **info}
    if nodes.recipes:
        info["columns"] = nodes.recipes
    if unread := _unread(nodes, data.get("task", {})):
        info["columns that are not used"] = unread
    return GraphSource(name, nodes.counts, sources, nodes.arrays, task, info,
                       node_ids=node_ids)


class _Nodes:
    """The nodes that a metadata.json describes.

    Attributes
    ----------
    path, directory : the metadata.json, and where it lies.
    items : node type to its entry, also those that the table of all nodes names.
    counts : node type to the number of nodes; 0 where edges will say it.
    open : whether edges may name types that have no entry.
    tables, named, arrays : the tables, the ids and the arrays of types that have some.
    recipes : how features were made of columns.
    """

    def __init__(self, path: Path, items: dict[str, Any], named: NamedNodes) -> None:
        self.path, self.directory = path, path.parent
        self.counts: dict[str, int] = {}
        self.named, self.tables = named, dict[str, ColumnTable]()
        self.arrays: dict[str, dict[str, np.ndarray]] = {}
        self.recipes: dict[str, list[dict[str, Any]]] = {}
        self._opened: dict[tuple[Any, ...], ColumnTable] = {}
        self._types: dict[tuple[Any, ...], tuple[list[str], np.ndarray]] = {}
        self.open = items.get(ALL) == {}
        self.items = {ntype: item for ntype, item in items.items() if ntype != ALL}
        if ALL in items and not self.open:
            where = f"{path}: node type '{ALL}'"
            check_keys(items[ALL], where, required=("table", "type"),
                       optional=("id", *TEXT_KEYS))
            _, types, _ = self._table_of_types(items[ALL], where)
            self.items |= {ntype: items[ALL] for ntype in types if ntype not in self.items}
        for ntype, item in self.items.items():
            self._add(ntype, item)

    def has_ids(self, ntype: str) -> bool:
        """Return whether the nodes of a type have ids of their own."""
        return ntype in self.tables or not self.counts[ntype]

    def _add(self, ntype: str, item: dict[str, Any]) -> None:
        where = f"{self.path}: node type '{ntype}'"
        check_keys(item, where, required=(), optional=(
            "count", "table", "id", "type", *TEXT_KEYS, "arrays", "features"))
        count = self.counts[ntype] = self._count(ntype, item, where)
        arrays = item.get("arrays", {})
        if not isinstance(arrays, dict):
            raise InputError(f"{where}: 'arrays' must be an object of array name: .npy file")
        if arrays and not count:
            raise InputError(f"{where} has arrays, but its nodes are those that edges name; give "
                             "it a 'count' or a 'table', which says whose row is which")
        for name, text in arrays.items():
            file = inside(self.directory, text, f"{where}: array '{name}'")
            self.arrays.setdefault(ntype, {})[name] = node_array(
                name, _node_rows(name, file), ntype, count, origin=text)
        if "features" in item:
            self.recipes[ntype] = _features(item, where, self.tables.get(ntype),
                                         self.arrays.setdefault(ntype, {}))

    def _count(self, ntype: str, item: dict[str, Any], where: str) -> int:
        """The number of nodes of a type; 0 where edges say it."""
        if "table" not in item:
            for key in ("id", "type", *TEXT_KEYS):
                if key in item:
                    raise InputError(f"{where}: '{key}' is of a 'table', which is not there")
            return count_of(item["count"], f"{where}: 'count'") if "count" in item else 0
        if "count" in item:
            raise InputError(f"{where} has both 'count' and 'table'; with a table its rows are the "
                             "nodes: leave 'count' out")
        if "type" in item:
            table, types, codes = self._table_of_types(item, where)
            if ntype not in types:
                raise InputError(f"{where}: no row of {table.path} has '{ntype}' in column "
                                 f"'{item['type']}'; there are {listing(types)}"
                                 + nearest(ntype, types))
            table = table.where(np.flatnonzero(codes == types.index(ntype)))
        else:
            table = self._table(item, where)
        self.tables[ntype] = table
        return self.named.add_table(ntype, table, name_of(item.get("id", "id"), f"{where}: 'id'"))

    def _table(self, item: dict[str, Any], where: str) -> ColumnTable:
        """The table of an entry, opened once."""
        form = text_form(item, where)
        files = files_of(self.directory, item["table"], f"{where}: 'table'")
        key = (*files, form)
        if key not in self._opened:
            path = files[0] if len(files) == 1 else self.directory / item["table"]
            self._opened[key] = ColumnTable(path, files, form, self.directory)
        return self._opened[key]

    def _table_of_types(self, item: dict[str, Any], where: str
                        ) -> tuple[ColumnTable, list[str], np.ndarray]:
        """A table of nodes of several types, the types, and which of them each row is of."""
        table, column = self._table(item, where), name_of(item["type"], f"{where}: 'type'")
        key = (table, column)
        if key not in self._types:
            self._types[key] = table.codes(column, " as node type")
        return table, *self._types[key]


Streamed = dict[Relation, EdgeSource]


def _read_edges(nodes: _Nodes, items: list[Any]) -> dict[Relation, EdgeSource]:
    """The edges of all relations, in the order of entries; counts the nodes that only they name."""
    entries: list[tuple[str, EdgeTables | Streamed]] = []
    once: set[Relation] = set()
    for index, item in enumerate(items):
        where, entry = _edge_entry(nodes, item, f"{nodes.path}: edges[{index}]", once)
        entries.append((where, entry))
    tables = [entry for _, entry in entries if isinstance(entry, EdgeTables)]
    for ntype in sorted(nodes.named.ask(tables, nodes.counts, nodes.open)):
        nodes.counts.setdefault(ntype, 0)
    nodes.counts |= nodes.named.gather([t for t, count in nodes.counts.items() if not count])
    numbered = iter(nodes.named.edges(nodes.counts))
    sources: dict[Relation, EdgeSource] = {}
    for where, entry in entries:
        read: Mapping[Relation, EdgeSource] = (
            next(numbered) if isinstance(entry, EdgeTables) else entry)
        for relation, source in read.items():
            if relation in sources:
                raise InputError(f"{where}: relation '{relation}' is in an entry before, too; one "
                                 "entry has all edges of a relation")
            sources[relation] = source
    return sources


def _edge_entry(nodes: _Nodes, item: Any, where: str, once: set[Relation]
                ) -> tuple[str, EdgeTables | Streamed]:
    """An entry of `edges`, with how messages name it: tables to be read, or edges that are numbers.

    `once` are the relations that other entries name, to which this one's is added.
    """
    check_keys(item, where, required=("src", "etype", "dst", "files"),
               optional=("columns", *TEXT_KEYS))
    src, etype, dst = (name_or_column(item[key], f"{where}: '{key}'")
                       for key in ("src", "etype", "dst"))
    for key, ntype in (("src", src), ("dst", dst)):
        if isinstance(ntype, Column) or ntype == ALL or ntype in nodes.counts:
            continue
        if not nodes.open:
            raise InputError(f"{where}: '{key}' is '{ntype}', which is not in 'nodes'; node types: "
                             f"{listing(nodes.counts)}" + nearest(ntype, nodes.counts))
        nodes.counts[ntype] = 0
    if (isinstance(src, Column) or isinstance(etype, Column) or isinstance(dst, Column)
            or ALL in (src, dst)):
        return where, _edge_tables(nodes.directory, src, etype, dst, item, where)
    relation = Relation(src, etype, dst)
    where = f"{where} ('{relation}')"
    if relation in once:
        raise InputError(f"{where}: relation '{relation}' is named twice; list all its files in "
                         "one entry")
    once.add(relation)
    if nodes.has_ids(src) or nodes.has_ids(dst):
        return where, _edge_tables(nodes.directory, src, etype, dst, item, where)
    for key in ("columns", *TEXT_KEYS):
        if key in item:
            raise InputError(f"{where}: '{key}' is for edges of nodes with ids of their own; these "
                             "node types have a 'count'")
    return where, {relation: _edges(nodes.directory, item["files"], where)}


def _read_task(nodes: _Nodes, item: Any) -> tuple[Task, dict[str, Any]]:
    """The task, and what a store keeps of how its labels and masks were found."""
    where = f"{nodes.path}: task"
    check_keys(item, where, required=("target",),
               optional=("num_classes", "label", "kind", "split", "unlabelled"))
    classes = item.get("num_classes")
    classes = None if classes is None else count_of(classes, f"{where}: 'num_classes'")
    target = name_of(item["target"], f"{where}: 'target'")
    label = name_of(item.get("label", "label"), f"{where}: 'label'")
    kind = name_of(item.get("kind", "classification"), f"{where}: 'kind'")
    if label in nodes.items.get(target, {}).get("features", ()):
        raise InputError(f"{where}: column '{label}' of '{target}' is the label, and is to be a "
                         "feature, too, which would give the answer away; take it out of "
                         "'features'")
    if target not in nodes.counts:
        raise InputError(f"{where}: target node type '{target}' is not in the graph; node types: "
                         f"{listing(nodes.counts)}" + nearest(target, nodes.counts))
    unlabelled = item.get("unlabelled")
    if unlabelled is not None and (isinstance(unlabelled, bool)
                                   or not isinstance(unlabelled, int | float)):
        raise InputError(f"{where}: 'unlabelled' is {short(unlabelled)}; it must be a number")
    labels, info = Labels(), {}
    if label in (arrays := nodes.arrays.get(target, {})):
        arrays[label] = arrays[label][...]
    if target in nodes.tables:
        labels = task_columns(nodes.tables[target], label, kind, classes,
                             nodes.arrays.setdefault(target, {}), unlabelled)
    if labels.names and unlabelled is not None:
        if not labels.names[0].isdigit():
            raise InputError(f"{where}: 'unlabelled' is for labels that are numbers, and column "
                             f"'{label}' has names of classes; leave their cells empty")
        unlabelled = -1  # of those that were numbered
    if "split" in item:
        info = _split(item["split"], f"{where}: 'split'", nodes.tables.get(target), label, kind,
                      unlabelled, nodes.arrays.get(target, {}))
    info |= labels.info()
    task = node_task(target, classes or len(labels.names) or None, label, nodes.arrays,
                     nodes.counts, kind, unlabelled, info)
    return task, info


def _features(item: dict[str, Any], where: str, table: ColumnTable | None,
              arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Make `feat` of columns of a table; returns how."""
    columns = item["features"]
    if table is None or not isinstance(columns, dict) or not columns:
        raise InputError(f"{where}: 'features' must be an object of columns of a 'table': number, "
                         "vector, category, date or text, as {\"year\": \"number\"}")
    if "feat" in arrays:
        raise InputError(f"{where} has an array feat, and columns for 'features'; leave one out")
    arrays["feat"], records = table_features(table, columns)
    return records


def _split(split: Any, where: str, table: ColumnTable | None, label: str, kind: str,
           unlabelled: float | None, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Add the masks that a split says; returns what a store keeps of it."""
    if table is None:
        raise InputError(f"{where} is for a target with a 'table'; give masks in 'arrays'")
    if known := [name for name in MASKS if name in arrays]:
        raise InputError(f"{where} is given, but there is {known[0]} already; leave one out")
    masks, record = masks_of(split, table, arrays[label], kind, where, unlabelled)
    arrays |= masks
    return {"times": record} if record else {}


def _unread(nodes: _Nodes, task: dict[str, Any]) -> dict[str, list[str]]:
    """Columns of tables that nothing reads, by type, for whoever looks at the store."""
    unread = {}
    for ntype, table in nodes.tables.items():
        item = nodes.items[ntype]
        read = {item.get("id", "id"), item.get("type"), *item.get("features", ())}
        if task.get("target") == ntype:
            split = task.get("split", {})
            read |= {task.get("label", "label"), *MASKS,
                     split if isinstance(split, str) else split.get("time")}
        if left := [name for name in table.names if name not in read]:
            unread[ntype] = left
    return unread


def _edge_tables(directory: Path, src: str | Column, etype: str | Column, dst: str | Column,
                 item: dict[str, Any], where: str) -> EdgeTables:
    columns = item.get("columns")
    if columns is not None and not (
            isinstance(columns, list) and len(columns) == 2
            and all(isinstance(name, str) and name for name in columns)):
        raise InputError(f"{where}: 'columns' is {short(columns)}; it must be two names of "
                         "columns: of the sources, of the destinations")
    paths, form = [], text_form(item, where)
    for path, entry in files_in(directory, item["files"], where):
        if not isinstance(path, Path) or not path.name.endswith(ENDINGS):
            raise InputError(f"{entry}, but a node type of this relation has ids of its own (no "
                             f"'count'); such edges are tables: {', '.join(ENDINGS)}")
        paths.append(path)
    tables = for_each(lambda path: ColumnTable(path, form=form, root=directory), paths)
    return EdgeTables(src, etype, dst, tables, columns)


def _edges(directory: Path, files: Any, where: str) -> EdgeSource:
    parts: list[EdgeSource] = for_each(
        lambda file: open_edges(file) if isinstance(file, Path) else NpyEdges(*file),
        [file for file, _ in files_in(directory, files, where)])
    return parts[0] if len(parts) == 1 else JoinedEdges(parts)


def _node_rows(name: str, file: Path) -> Any:
    """An array of nodes, mapped; of one in object storage features are read later, in rows."""
    array = open_npy(file)
    features = array.ndim == 2 and array.dtype.kind == "f" and array.dtype.isnative
    return array if features and name not in MASKS else array[...]
