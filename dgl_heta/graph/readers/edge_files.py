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
array of shape (2, E), a `.csv` or `.csv.gz` with two columns and an optional header line, a
`.parquet` with columns `src` and `dst`, or a pair of one-dimensional `.npy` files; the files of a
relation are read one after the other.

Nodes may have ids of their own, text or numbers: `"paper": {"table": "papers.parquet"}` has a row
per node with its column `id` (or `"id": "doi"`), and `"author": {}` has the nodes that edges name.
The edges of such types are tables, too (:mod:`dgl_heta.graph.readers.tables`): columns `src` and
`dst`, or `"columns": ["who", "what"]` beside `files`. Labels and masks may be columns of the
table (:mod:`dgl_heta.graph.readers.columns`), and so may be what features are made of (`features`:
:mod:`dgl_heta.graph.readers.table_features`) and what says the `split` of a task
(:mod:`dgl_heta.graph.readers.splits`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.labels import known_entries
from dgl_heta.graph.readers.arrays import node_array, node_task
from dgl_heta.graph.readers.columns import Labels, task_columns
from dgl_heta.graph.readers.files import (
    JoinedEdges,
    NpyEdges,
    inside,
    open_edges,
    open_npy,
)
from dgl_heta.graph.readers.named import EdgeTables, NamedNodes
from dgl_heta.graph.readers.sizes import parse_json, read_text
from dgl_heta.graph.readers.splits import masks_of
from dgl_heta.graph.readers.table_features import table_features
from dgl_heta.graph.readers.tables import ENDINGS, Table
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, EdgeSource, GraphSource

METADATA = "metadata.json"


def read_edge_files(directory: str | Path) -> GraphSource:
    """Describe the graph in `directory`. Edges stay in their files, node arrays are mapped.

    Edges of nodes with ids of their own are numbered here, and stay in memory (8 bytes each).

    Raises
    ------
    InputError
        Anything in `metadata.json` or the files that is not as described above.
    """
    directory = Path(directory)
    path = directory / METADATA
    data = parse_json(read_text(path), path)
    _keys(data, str(path), required=("name", "nodes", "edges"), optional=("task",))
    name = _text(data["name"], f"{path}: 'name'")
    nodes, edges = data["nodes"], data["edges"]
    if not isinstance(nodes, dict) or not nodes:
        raise InputError(f"{path}: 'nodes' must be an object of node type: {{\"count\": …}}")
    if not isinstance(edges, list) or not edges:
        raise InputError(f"{path}: 'edges' must be a list of {{src, etype, dst, files}}")

    node_counts: dict[str, int] = {}
    named, tables = NamedNodes(), dict[str, Table]()
    node_arrays: dict[str, dict[str, np.ndarray]] = {}
    made: dict[str, list[dict[str, Any]]] = {}
    for ntype, item in nodes.items():
        where = f"{path}: node type '{ntype}'"
        _keys(item, where, required=(), optional=("count", "table", "id", "arrays",
                                                   "features"))
        count = node_counts[ntype] = _count(item, where, ntype, directory, named, tables)
        arrays = item.get("arrays", {})
        if not isinstance(arrays, dict):
            raise InputError(f"{where}: 'arrays' must be an object of array name: .npy file")
        if arrays and not count:
            raise InputError(f"{where} has arrays, but its nodes are those that edges name; give "
                             "it a 'count' or a 'table', which says whose row is which")
        for array_name, text in arrays.items():
            file = inside(directory, text, f"{where}: array '{array_name}'")
            node_arrays.setdefault(ntype, {})[array_name] = node_array(
                array_name, open_npy(file), ntype, count, origin=text)
        if "features" in item:
            made[ntype] = _features(item, where, tables.get(ntype),
                                    node_arrays.setdefault(ntype, {}))

    free = [ntype for ntype, count in node_counts.items() if not count]
    sources: dict[Relation, EdgeSource] = {}
    waiting: dict[Relation, EdgeTables] = {}
    order: list[Relation] = []
    for index, item in enumerate(edges):
        where = f"{path}: edges[{index}]"
        _keys(item, where, required=("src", "etype", "dst", "files"), optional=("columns",))
        relation = Relation(*(_text(item[key], f"{where}: '{key}'")
                              for key in ("src", "etype", "dst")))
        for key, ntype in (("src", relation.src), ("dst", relation.dst)):
            if ntype not in node_counts:
                raise InputError(f"{where}: '{key}' is '{ntype}', which is not in 'nodes'; node "
                                 f"types: {listing(node_counts)}" + nearest(ntype, node_counts))
        if relation in order:
            raise InputError(f"{where}: relation '{relation}' is named twice; list all its files "
                             "in one entry")
        order.append(relation)
        where = f"{where} ('{relation}')"
        if {relation.src, relation.dst} & {*tables, *free}:
            waiting[relation] = _edge_tables(directory, relation, item, where)
        elif "columns" in item:
            raise InputError(f"{where}: 'columns' is for edges of nodes with ids of their own; "
                             "these node types have a 'count'")
        else:
            sources[relation] = _edges(directory, item["files"], where)
    if free:
        named.gather(free, list(waiting.values()))
    node_counts |= {ntype: named.count(ntype) for ntype in free}
    sources |= {r: named.edges(edges, node_counts) for r, edges in waiting.items()}
    sources = {r: sources[r] for r in order}

    task, found = None, Labels()
    info: dict[str, Any] = {"format": "edge files", "path": str(directory)}
    if "task" in data:
        where = f"{path}: task"
        _keys(data["task"], where, required=("target",),
              optional=("num_classes", "label", "kind", "split", "unlabelled"))
        classes = data["task"].get("num_classes")
        classes = None if classes is None else _positive(classes, f"{where}: 'num_classes'")
        target = _text(data["task"]["target"], f"{where}: 'target'")
        label = _text(data["task"].get("label", "label"), f"{where}: 'label'")
        kind = _text(data["task"].get("kind", "classification"), f"{where}: 'kind'")
        if target not in node_counts:
            raise InputError(f"{where}: target node type '{target}' is not in the graph; node "
                             f"types: {listing(node_counts)}" + nearest(target, node_counts))
        unlabelled = data["task"].get("unlabelled")
        if unlabelled is not None and (isinstance(unlabelled, bool)
                                       or not isinstance(unlabelled, int | float)):
            raise InputError(f"{where}: 'unlabelled' is {_short(unlabelled)}; it must be a number")
        if target in tables:
            found = task_columns(tables[target], label, kind, classes,
                                 node_arrays.setdefault(target, {}))
        if found.names and unlabelled is not None:
            raise InputError(f"{where}: 'unlabelled' is for labels that are numbers, and column "
                             f"'{label}' has names of classes; leave their cells empty")
        if "split" in data["task"]:
            _split(data["task"]["split"], f"{where}: 'split'", tables.get(target), label, kind,
                   unlabelled, node_arrays.get(target, {}))
        info |= found.info()
        task = node_task(target, classes or len(found.names) or None, label, node_arrays,
                         node_counts, kind, unlabelled, info)
    info |= {**({"columns": made} if made else {}), **_unread(data, tables)}
    return GraphSource(name, node_counts, sources, node_arrays, task, info,
                       node_ids=named.node_ids())


def _count(item: dict[str, Any], where: str, ntype: str, directory: Path, named: NamedNodes,
           tables: dict[str, Table]) -> int:
    """The number of nodes of a type; 0 where edges say it."""
    if "table" not in item:
        if "id" in item:
            raise InputError(f"{where}: 'id' names a column of a 'table', which is not there")
        return _positive(item["count"], f"{where}: 'count'") if "count" in item else 0
    if "count" in item:
        raise InputError(f"{where} has both 'count' and 'table'; with a table its rows are the "
                         "nodes: leave 'count' out")
    table = Table(inside(directory, item["table"], f"{where}: 'table'"))
    tables[ntype] = table
    return named.add_table(ntype, table, _text(item.get("id", "id"), f"{where}: 'id'"))


def _features(item: dict[str, Any], where: str, table: Table | None,
              arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Make `feat` of columns of a table; returns how."""
    columns = item["features"]
    if table is None or not isinstance(columns, dict) or not columns:
        raise InputError(f"{where}: 'features' must be an object of columns of a 'table': number, "
                         "category or text, as {\"year\": \"number\"}")
    if "feat" in arrays:
        raise InputError(f"{where} has an array feat, and columns for 'features'; leave one out")
    arrays["feat"], records = table_features(table, columns)
    return records


def _split(split: Any, where: str, table: Table | None, label: str, kind: str,
           unlabelled: float | None, arrays: dict[str, np.ndarray]) -> None:
    """Add the masks that a split says."""
    if table is None:
        raise InputError(f"{where} is for a target with a 'table'; give masks in 'arrays'")
    if known := [name for name in MASKS if name in arrays]:
        raise InputError(f"{where} is given, but there is {known[0]} already; leave one out")
    labels = arrays[label]
    labelled = known_entries(labels, unlabelled)
    if kind == "classification":
        labelled &= labels >= 0
    labelled = labelled.reshape(len(labels), -1).any(1)
    arrays |= masks_of(split, table, labels, labelled, where)


def _unread(data: dict[str, Any], tables: dict[str, Table]) -> dict[str, Any]:
    """Columns of tables that nothing reads, by type, for whoever looks at the store."""
    task = data.get("task", {})
    unread = {}
    for ntype, table in tables.items():
        item = data["nodes"][ntype]
        read = {item.get("id", "id"), *item.get("features", ())}
        if task.get("target") == ntype:
            split = task.get("split", {})
            read |= {task.get("label", "label"), *MASKS,
                     split if isinstance(split, str) else split.get("time")}
        if left := [name for name in table.names if name not in read]:
            unread[ntype] = left
    return {"columns that are not used": unread} if unread else {}


def _edge_tables(directory: Path, relation: Relation, item: dict[str, Any], where: str
                 ) -> EdgeTables:
    columns = item.get("columns")
    if columns is not None and not (
            isinstance(columns, list) and len(columns) == 2
            and all(isinstance(name, str) and name for name in columns)):
        raise InputError(f"{where}: 'columns' is {_short(columns)}; it must be two names of "
                         "columns: of the sources, of the destinations")
    paths = []
    for index, file in enumerate(_files(item["files"], where)):
        if not (isinstance(file, str) and file.endswith(ENDINGS)):
            raise InputError(f"{where}: files[{index}] is {_short(file)}, but a node type of this "
                             "relation has ids of its own (no 'count'); such edges are tables: "
                             f"{', '.join(ENDINGS)}")
        paths.append(inside(directory, file, f"{where}: files[{index}]"))
    return EdgeTables(relation, paths, columns)


def _files(files: Any, where: str) -> list[Any]:
    if not isinstance(files, list) or not files:
        raise InputError(f"{where}: 'files' must be a list with at least one file")
    return files


def _edges(directory: Path, files: Any, where: str) -> EdgeSource:
    parts: list[EdgeSource] = []
    for index, item in enumerate(_files(files, where)):
        entry = f"{where}: files[{index}]"
        if isinstance(item, dict):
            _keys(item, entry, required=("src_file", "dst_file"))
            parts.append(NpyEdges(*(inside(directory, item[key], f"{entry}: '{key}'")
                                    for key in ("src_file", "dst_file"))))
            continue
        path = inside(directory, item, entry)
        if not path.name.endswith((".csv", ".csv.gz", ".npy", ".parquet")):
            raise InputError(f"{entry} is '{item}'; edge files end in .npy, .csv, .csv.gz or "
                             ".parquet")
        parts.append(open_edges(path))
    return parts[0] if len(parts) == 1 else JoinedEdges(parts)


def _keys(item: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Check that `item` is an object with the required keys and no unknown ones."""
    required = tuple(required)
    allowed = (*required, *optional)
    if not isinstance(item, dict):
        raise InputError(f"{where} is {_short(item)}; it must be an object with {listing(allowed)}")
    for key in item:
        if key not in allowed:
            raise InputError(f"{where}: unknown key '{key}'; keys: {listing(allowed)}"
                             + nearest(key, allowed))
    missing = [key for key in required if key not in item]
    if missing:
        raise InputError(f"{where} lacks {listing(missing)}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} is {_short(value)}; it must be a name in quotes")
    return value


def _positive(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where} is {_short(value)}; it must be a whole number, 1 or more")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
