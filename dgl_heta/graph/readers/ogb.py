"""An OGB node-property data set that is already on disk, read with the ogb package's functions.

`ogb.nodeproppred.NodePropPredDataset` is not used: it unpickles `processed/data_processed` and
`split_dict.pt` (a file can run code that way), asks on standard input before it downloads or
updates, and imports dgl. Instead the functions of `ogb.io.read_graph_raw` read `raw/` and
`split/<split>/`, which are CSV and npz files; `processed/` and `*.pt` are never opened and
nothing is written. What a data set looks like comes from the `master.csv` of the package.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import importlib.util
import io
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers.arrays import class_labels, node_array, node_mask, node_task
from dgl_heta.graph.readers.sizes import check_archive
from dgl_heta.graph.readers.whole_numbers import check_numbers
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, EdgeArrays, EdgeSource, GraphSource
from dgl_heta.system.optional import optional

#: Node type and relation of a homogeneous data set.
NODE, TO = "node", Relation("node", "to", "node")

_KINDS = {"multiclass classification": "classification", "binary classification": "multilabel"}
"""The package's words for tasks, and ours."""
_SPLITS = dict(zip(("train", "valid", "test"), MASKS))


def read_ogb(name: str, root: str | Path, reverse: bool | None = None) -> GraphSource:
    """Describe the data set `name` (such as `ogbn-mag`) that lies under `root`.

    Parameters
    ----------
    name : OGB's name of the data set.
    root : where it was downloaded to: `ogbn-mag` is `root/ogbn_mag`.
    reverse : for each relation `src etype dst` add `dst rev-etype src`, also where both ends
        have one type. Without it: for heterogeneous data sets only. OGB's own inverse edges
        of `ogbn-products` and `ogbn-proteins` are there in any case.

    A homogeneous data set has node type `node` and relation `node to node`. Node features are
    array `feat`, further ones (such as `node_year`) keep their name; nodes without a label
    have label -1. Edge features are left out. All of the graph is in memory while it is read.

    Raises
    ------
    InputError
        The ogb package or the data set is missing, an unknown name, another release than the
        package reads, or damaged files.
    """
    master = _master()
    if name not in master:
        raise InputError(f"'{name}' is not an OGB node-property data set; there are: "
                         f"{listing(master)}" + nearest(name, master))
    meta = master[name]
    directory = Path(root) / name.replace("-", "_")
    _check_files(directory, name, meta)
    return _read(directory, name, meta, reverse)


def _master() -> dict[str, dict[str, str]]:
    """The package's table of data sets: name to its properties."""
    spec = importlib.util.find_spec("ogb")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("reading an OGB data set needs the ogb package: pip install ogb")
    path = Path(next(iter(spec.submodule_search_locations))) / "nodeproppred" / "master.csv"
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise InputError(f"cannot read the table of OGB data sets {path}: {error.strerror}"
                         ) from None
    return {name: {row[0]: row[column] for row in rows[1:]}
            for column, name in enumerate(rows[0]) if name}


def _check_files(directory: Path, name: str, meta: Mapping[str, str]) -> None:
    if not directory.is_dir():
        raise InputError(
            f"{name} was expected in {directory}, which does not exist; download it once with the "
            f"ogb package (NodePropPredDataset(name='{name}', root='{directory.parent}')) or "
            f"unpack {meta['url']} there"
        )
    releases = sorted(path.name for path in directory.glob("RELEASE_v*.txt"))
    wanted = f"RELEASE_v{meta['version']}.txt"
    if releases and wanted not in releases:
        raise InputError(f"{directory} holds {listing(releases)}, but the installed ogb package "
                         f"describes {wanted}; remove the directory and download {name} again")
    if meta["binary"] == "True":
        needed = ["data.npz", "node-label.npz"]
    elif meta["is hetero"] == "True":
        needed = ["num-node-dict.csv.gz", "triplet-type-list.csv.gz", "nodetype-has-label.csv.gz"]
    else:
        needed = ["edge.csv.gz", "num-node-list.csv.gz", "num-edge-list.csv.gz",
                  "node-label.csv.gz"]
    missing = [f"raw/{file}" for file in needed if not (directory / "raw" / file).is_file()]
    split = Path("split") / meta["split"]
    per_type = meta["is hetero"] == "True"
    needed = ["nodetype-has-split.csv.gz"] if per_type else [f"{s}.csv.gz" for s in _SPLITS]
    missing += [f"{split}/{file}" for file in needed if not (directory / split / file).is_file()]
    if missing:
        raise InputError(f"{name} in {directory} lacks {listing(missing)}; download it again "
                         "(processed/ and *.pt files are not read: they are pickles)")


def _read(directory: Path, name: str, meta: Mapping[str, str], reverse: bool | None) -> GraphSource:
    raw, split = directory / "raw", directory / "split" / meta["split"]
    hetero = meta["is hetero"] == "True"
    inverse = meta["add_inverse_edge"] == "True"
    with _reading(name, directory):
        _check_contents(raw, split)
        ogb_io = _ogb_io()
        if hetero:
            graph = _only(ogb_io.read_csv_heterograph_raw(
                str(raw), inverse, _additional(meta, raw / "node-feat" / "*")), name)
            labels = ogb_io.read_node_label_hetero(str(raw))
            splits = dict(zip(_SPLITS, ogb_io.read_nodesplitidx_split_hetero(str(split))))
            node_counts = {t: int(n) for t, n in graph["num_nodes_dict"].items()}
            index = {Relation(*r): e for r, e in graph["edge_index_dict"].items()}
            node_data = {key.removesuffix("_dict"): value for key, value in graph.items()
                         if key.startswith("node_") and value}
        else:
            if meta["binary"] == "True":
                graph = _only(ogb_io.read_binary_graph_raw(str(raw), inverse), name)
                with np.load(raw / "node-label.npz", allow_pickle=False) as archive:
                    labels = {NODE: archive["node_label"]}
            else:
                graph = _only(ogb_io.read_csv_graph_raw(
                    str(raw), inverse, _additional(meta, raw)), name)
                labels = {NODE: _csv(raw / "node-label.csv.gz")}
            splits = {key: {NODE: _csv(split / f"{key}.csv.gz").reshape(-1)} for key in _SPLITS}
            node_counts = {NODE: int(graph["num_nodes"])}
            index = {TO: graph["edge_index"]}
            node_data = {key: {NODE: value} for key, value in graph.items()
                         if key.startswith("node_") and value is not None}
    return _source(name, meta, directory, node_counts,
                   _edges(index, hetero if reverse is None else reverse, name),
                   node_data, labels, splits)


def _check_contents(raw: Path, split: Path) -> None:
    """Refuse what ogb's readers would misread: they parse all numbers as floating point."""
    for path in sorted({*raw.rglob("*.csv.gz"), *split.rglob("*.csv.gz")}):
        check_numbers(path, whole=path.name in ("edge.csv.gz", "num-edge-list.csv.gz")
                      or (split in path.parents and path.name != "nodetype-has-split.csv.gz"))
    for path in sorted({*raw.rglob("*.npz"), *split.rglob("*.npz")}):
        check_archive(path)


def _source(name: str, meta: Mapping[str, str], directory: Path, node_counts: dict[str, int],
            edges: dict[Relation, EdgeSource], node_data: Mapping[str, Mapping[str, np.ndarray]],
            labels: Mapping[str, np.ndarray],
            splits: Mapping[str, Mapping[str, np.ndarray]]) -> GraphSource:
    for ntype in {*labels, *(t for per_type in splits.values() for t in per_type)}:
        if ntype not in node_counts:
            raise InputError(f"{name} in {directory} has labels or a split of node type '{ntype}', "
                             f"which is not in the graph; node types: {listing(node_counts)}")
    node_arrays: dict[str, dict[str, np.ndarray]] = {}

    def add(ntype: str, key: str, array: np.ndarray) -> None:
        node_arrays.setdefault(ntype, {})[key] = node_array(key, array, ntype, node_counts[ntype])

    for key, per_type in node_data.items():
        for ntype, array in per_type.items():
            # OGB keeps a year per node as a column: (nodes, 1).
            single = key != "node_feat" and array.ndim == 2 and array.shape[1] == 1
            add(ntype, "feat" if key == "node_feat" else key,
                array.reshape(-1) if single else array)
    kind = _KINDS[meta["task type"]]
    for ntype, array in labels.items():
        what = f"labels of node type '{ntype}' of {name}"
        add(ntype, "label", class_labels(array, what) if kind == "classification" else array)
    for key, per_type in splits.items():
        for ntype, ids in per_type.items():
            add(ntype, _SPLITS[key], node_mask(ids, node_counts[ntype],
                                               f"the {key} split of '{ntype}' of {name}"))
    info: dict[str, Any] = {"format": "OGB", "path": str(directory), "split": meta["split"]}
    task = None
    if len(labels) == 1:
        number = meta["num classes" if kind == "classification" else "num tasks"]
        task = node_task(next(iter(labels)), int(number), "label", node_arrays, node_counts, kind)
    return GraphSource(name, node_counts, edges, node_arrays, task, info)


def _edges(index: Mapping[Relation, np.ndarray], reverse: bool,
           name: str) -> dict[Relation, EdgeSource]:
    edges: dict[Relation, EdgeSource] = {}
    for relation, pairs in index.items():
        if pairs.ndim != 2 or len(pairs) != 2:
            raise InputError(f"relation '{relation}' of {name} has {len(pairs)} columns; edges "
                             "have two: source id, destination id")
        edges[relation] = EdgeArrays(pairs[0], pairs[1])
    if reverse:
        for relation, pairs in index.items():
            back = Relation(relation.dst, f"rev-{relation.etype}", relation.src)
            if back in edges:
                raise InputError(f"{name} already has a relation '{back}'; read it with "
                                 "reverse=False")
            edges[back] = EdgeArrays(pairs[1], pairs[0])
    return edges


def _additional(meta: Mapping[str, str], folder: Path) -> list[str]:
    """Node files besides the features that are there (OGB renames a missing one in place)."""
    names = meta["additional node files"].split(",")
    return [n for n in names if list(folder.parent.glob(f"{folder.name}/{n}.csv.gz"))]


def _only(graphs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    if len(graphs) != 1:
        raise InputError(f"{name} holds {len(graphs)} graphs; a node-property data set has one")
    return graphs[0]


def _csv(path: Path) -> np.ndarray:
    pd = optional("pandas", "an OGB data set", "readers")
    return pd.read_csv(path, compression="gzip", header=None).to_numpy()


def _ogb_io() -> Any:
    """`ogb.io.read_graph_raw`, imported without asking the network for a newer version of ogb."""
    module = "ogb.io.read_graph_raw"
    if "ogb" in sys.modules or "outdated" in sys.modules:
        return importlib.import_module(module)
    # `import ogb` starts a thread that asks PyPI, and the process waits for it at its end;
    # ogb leaves that out where the package `outdated` cannot be imported.
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module(module)
    finally:
        del sys.modules["outdated"]


@contextlib.contextmanager
def _reading(name: str, directory: Path) -> Iterator[None]:
    """Silence OGB's progress on the terminal, and turn what it raises into one message."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        try:
            yield
        except InputError:
            raise
        except ImportError as error:
            raise InputError(f"an OGB data set needs ogb, which cannot be imported ({error}); "
                             "install 'dgl-heta[readers]'") from None
        except Exception as error:  # ogb, pandas and numpy, each with errors of its own
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, RuntimeError):
                # ogb says 'No necessary file' whichever file it is.
                missing = _missing_relation_files(directory)
                reason += f" (missing: {listing(missing)})" if missing else ""
            raise InputError(f"cannot read {name} in {directory}: {reason}; the files differ from "
                             "OGB's layout or are damaged: download it again") from error


def _missing_relation_files(directory: Path) -> list[str]:
    relations = directory / "raw" / "relations"
    try:
        triplets = _csv(directory / "raw" / "triplet-type-list.csv.gz").tolist()
    except (OSError, ValueError, EOFError, zlib.error):
        return []
    files = [relations / "___".join(map(str, triplet)) / file for triplet in triplets
             for file in ("edge.csv.gz", "num-edge-list.csv.gz")]
    return [str(file.relative_to(directory)) for file in files if not file.is_file()]
