"""Parts for training: DistDGL's, with the features of their halo nodes beside them.

DistDGL keeps features where a node is owned, and brings those of others over the network. Here a
worker trains on its part alone, so the part needs all of them (CATGNN, §3.1). They are written
once, a part at a time, by the ids of the parts; a worker reads its nodes' rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta import InputError
from dgl_heta.tools import (
    MASKS,
    check_file,
    check_finite,
    file_sum,
    listing,
    new_array,
    optional,
    read_signed,
    write_signed,
)

log = logging.getLogger(__name__)
FEATURES, LABELS = ("feat", "features", "feats", "x"), ("label", "labels", "y")
"""Names of node data in parts, ours and those of scripts."""

INFO = "parts.json"
REMEDY = "run the command again, which makes the parts anew"


@dataclass(frozen=True)
class PartInfo:
    """Counts of a part, known without reading it.

    Attributes
    ----------
    own, nodes : nodes that it owns; with halo nodes.
    edges : edges, those of halo nodes included.
    train : nodes that it owns and trains on: its weight α in averages.
    """

    own: int
    nodes: int
    edges: int
    train: int


@dataclass(frozen=True)
class TrainingParts:
    """A directory that :func:`prepare` has written.

    Node arrays are `.npy` files by the ids of the parts, one row a node: `feat` (float32), `label`
    (int64, -1 for none), `split` (uint8: 1 training, 2 validation, 4 test), `in_degree` and
    `out_degree` (int64, on the whole graph, self-loops left out). A part has `nodes` (its nodes,
    own ones first) and `src` and `dst` (places in `nodes`).

    `files` has size and SHA-256 of each file by its path. Sizes are compared when the directory is
    opened, checksums before a process first reads a file: InputError names one that differs.
    """

    directory: Path
    parts: list[PartInfo]
    width: int
    classes: int
    hops: int
    method: str
    files: Mapping[str, Mapping[str, Any]]
    _compared: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, directory: Path) -> TrainingParts:
        info = read_signed(directory / INFO, REMEDY)
        try:
            parts = cls(directory, [PartInfo(**part) for part in info.pop("parts")], **info)
            sizes = {name: int(file["bytes"]) for name, file in parts.files.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{directory / INFO} is damaged: it is not what is written there; "
                             f"{REMEDY}") from None
        for name, wanted in sizes.items():
            try:
                size = (directory / name).stat().st_size
            except OSError as error:
                raise InputError(f"cannot read {directory / name}: {error.strerror}; {REMEDY}"
                                 ) from None
            if size != wanted:
                raise InputError(f"{directory / name} is damaged: it has {size} bytes, not "
                                 f"{wanted} as {INFO} says; {REMEDY}")
        return parts

    @property
    def num_nodes(self) -> int:
        return sum(part.own for part in self.parts)

    def array(self, name: str) -> np.ndarray:
        """A node array, as a memory map."""
        rows: np.ndarray = np.load(self._file(f"{name}.npy"), mmap_mode="r")
        return rows

    def part(self, index: int, name: str) -> np.ndarray:
        """A part's array, in memory."""
        values: np.ndarray = np.load(self._file(f"part-{index}/{name}.npy"))
        return values

    def _file(self, name: str) -> Path:
        """A file whose content is what was written."""
        path = self.directory / name
        if name not in self._compared:
            check_file(path, self.files.get(name, {}).get("sha256"), INFO, REMEDY)
            self._compared.add(name)
        return path


def prepare(config: Path, out: Path, *, target: str | None = None, classes: int | None = None,
            labels: Sequence[str] = LABELS, unlabelled: float | None = None) -> TrainingParts:
    """Make parts for training of DistDGL's; no more than a part is in memory at a time.

    An edge between two parts is in both (CATGNN, §3.1). Stream partitioners have it where its
    destination is owned alone, DGL itself (METIS, random) where either end is. With one hop
    in-edges of own nodes are taken, and the out-edges of a part's nodes to its halo nodes are
    added, so that these have some of their neighbours, too, and every edge is there once.

    Features of node types are side by side where there are several, with a column for each type
    that says what a node is. A type without features has that alone. Features are node data of one
    of the usual names, or else a type's only matrix of floating-point numbers.

    Parameters
    ----------
    config : the part_config of DistDGL's.
    target : node type to classify; default: the only one with labels and a training mask.
    classes : number of classes; default: one more than the largest label.
    labels : names of the labels, of which the first that is there is taken.
    unlabelled : a label that stands for none.

    Raises
    ------
    InputError
        No parts, or parts without what training needs; the message says what there is. Features
        that are not finite.
    """
    book = _Book.read(config)
    data = book.node_data(0)
    target = _target(data, target, book, labels)
    features = {t: _features(data, t, labels) for t in book.types}
    widths = {t: data[f"{t}/{name}"].shape[1] for t, name in features.items() if name is not None}
    width = sum(widths.values()) + (len(book.types) if len(book.types) > 1 or not widths else 0)
    label_name = _named(data, target, labels)
    nodes = book.num_nodes
    arrays = {name: new_array(out / f"{name}.npy", kind, shape)
              for name, kind, shape in (
                  ("feat", np.float32, (nodes, width)), ("label", np.int64, (nodes,)),
                  ("split", np.uint8, (nodes,)), ("in_degree", np.int64, (nodes,)),
                  ("out_degree", np.int64, (nodes,)))}
    arrays["label"][:] = -1
    first = dict(zip(widths, np.cumsum([0, *widths.values()])))
    for part in range(book.parts):
        data = book.node_data(part)
        for i, ntype in enumerate(book.types):
            own = slice(*book.ranges[ntype][part])
            if (name := features[ntype]) is not None:
                rows = data[f"{ntype}/{name}"].float().numpy()
                check_finite(name, rows, ntype, book.before(ntype, part))
                arrays["feat"][own, first[ntype]:first[ntype] + widths[ntype]] = rows
            if width > sum(widths.values()):
                arrays["feat"][own, sum(widths.values()) + i] = 1
        own = slice(*book.ranges[target][part])
        label = data[f"{target}/{label_name}"].numpy()
        if label.ndim != 1 or label.dtype.kind not in "iu":
            raise InputError(f"label '{label_name}' of '{target}' has shape {label.shape} and type "
                             f"{label.dtype}; it must be one whole number per node")
        label = label.astype(np.int64)
        if unlabelled is not None:
            label[label == unlabelled] = -1
        arrays["label"][own] = label
        for bit, mask in enumerate(MASKS):
            if f"{target}/{mask}" in data:
                chosen = (data[f"{target}/{mask}"].numpy() != 0) & (label >= 0)
                arrays["split"][own] |= chosen.astype(np.uint8) << bit
    largest = int(arrays["label"].max(initial=-1)) + 1
    if classes is not None and largest > classes:
        raise InputError(f"label '{label_name}' has {largest - 1}, but there are {classes} classes")
    infos = _write_edges(book, arrays, out)
    if not sum(info.train for info in infos):
        raise InputError(f"no node of '{target}' is in train_mask and has a label; there is "
                         "nothing to train on")
    for array in arrays.values():
        array.flush()
    record = {"parts": [vars(info) for info in infos], "width": width, "hops": book.hops,
            "classes": classes or largest, "method": book.method,
            "files": {file.relative_to(out).as_posix(): {
                "bytes": file.stat().st_size, "sha256": file_sum(file)}
                for file in sorted(out.rglob("*.npy"))}}
    write_signed(out / INFO, record)
    return TrainingParts.open(out)


def _write_edges(book: _Book, arrays: Mapping[str, np.ndarray], out: Path) -> list[PartInfo]:
    graphs = book.parts
    for part in range(graphs):
        (out / f"part-{part}").mkdir()
    if book.hops == 1 and graphs > 1:  # a column pair per part that has an edge's source
        for part in range(graphs):
            for other, src, dst in _crossing(book, part):
                with (out / f"part-{other}" / "out.bin").open("ab") as file:
                    file.write(np.stack([src, dst], 1).tobytes())
    infos = []
    for part in range(graphs):
        nodes, own, src, dst, inner = book.edges(part)
        if book.hops == 1:  # DGL's own parts have those to halo nodes, too, which are added below
            src, dst, inner = src[inner], dst[inner], inner[inner]
        ends = [nodes[side[inner & (src != dst)]] for side in (src, dst)]
        for name, ids in zip(("out_degree", "in_degree"), ends):
            np.add.at(arrays[name], ids, 1)
        extra = out / f"part-{part}" / "out.bin"
        if extra.exists():
            more = np.fromfile(extra, np.int64).reshape(-1, 2)
            extra.unlink()
            order = np.argsort(nodes)
            places = [order[np.minimum(np.searchsorted(nodes, ids, sorter=order), len(nodes) - 1)]
                      for ids in more.T]
            # A destination that is no halo node gives this part nothing.
            here = nodes[places[1]] == more[:, 1]
            src, dst = (np.concatenate([side, row_of[here]])
                        for side, row_of in zip((src, dst), places))
        for name, values in (("nodes", nodes), ("src", src), ("dst", dst)):
            np.save(out / f"part-{part}" / f"{name}.npy", values)
        train = int((arrays["split"][nodes[:own]] & 1).sum())
        infos.append(PartInfo(own, len(nodes), len(src), train))
    return infos


def _crossing(book: _Book, part: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """A part's in-edges by the other part that owns their sources, in the ids of the parts."""
    nodes, own, src, dst, inner = book.edges(part)
    cross = inner & (src >= own)
    src, dst = nodes[src[cross]], nodes[dst[cross]]
    owner = book.owner(src)
    for other in np.unique(owner).tolist():
        yield other, src[owner == other], dst[owner == other]


@dataclass(frozen=True)
class _Book:
    """DistDGL's part_config and what it names."""

    directory: Path
    config: dict[str, Any]
    dgl: Any

    @classmethod
    def read(cls, path: Path) -> _Book:
        dgl = optional("dgl", "training on DistDGL's parts", "dgl")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path} cannot be read as a part_config: {error}") from None
        if not isinstance(config, dict) or "part-0" not in config:
            raise InputError(f"{path} is no part_config of DistDGL's; name the JSON file beside "
                             "the directories part0, part1, …")
        if "part_graph" not in config["part-0"]:
            raise InputError(f"the parts of {path} have no graph for DistDGL; make some with "
                             "`dgl-heta partition --method spring`")
        return cls(path.parent, config, dgl)

    @property
    def parts(self) -> int:
        return int(self.config["num_parts"])

    @property
    def num_nodes(self) -> int:
        return int(self.config["num_nodes"])

    @property
    def hops(self) -> int:
        return int(self.config.get("halo_hops", 1))

    @property
    def method(self) -> str:
        return str(self.config.get("part_method", "?"))

    @property
    def ranges(self) -> dict[str, list[list[int]]]:
        ranges: dict[str, list[list[int]]] = self.config["node_map"]
        return ranges

    @property
    def types(self) -> list[str]:
        return list(self.ranges)

    def before(self, ntype: str, part: int) -> int:
        """How many nodes of a type the parts before this one own."""
        return sum(high - low for low, high in self.ranges[ntype][:part])

    def node_data(self, part: int) -> dict[str, Any]:
        file = self.directory / self.config[f"part-{part}"]["node_feats"]
        if not file.exists():
            raise InputError(f"{file} is missing; write the parts again")
        tensors: dict[str, Any] = self.dgl.data.utils.load_tensors(str(file))
        return tensors

    def edges(self, part: int) -> tuple[np.ndarray, int, np.ndarray, np.ndarray, np.ndarray]:
        """A part's nodes (own ones first), how many it owns, edges as places in these, which of
        these are in-edges of own nodes."""
        file = self.directory / self.config[f"part-{part}"]["part_graph"]
        if not file.exists():
            raise InputError(f"{file} is missing; write the parts again")
        (graph,), _ = self.dgl.load_graphs(str(file))
        nodes = graph.ndata[self.dgl.NID].numpy()
        inner = graph.ndata["inner_node"].numpy() == 1
        src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
        order = np.argsort(~inner, kind="stable")
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        own = int(inner.sum())
        return nodes[order], own, row_of[src], row_of[dst], inner[dst]

    def owner(self, ids: np.ndarray) -> np.ndarray:
        """The part that owns a node."""
        ends = [max(ranges[part][1] for ranges in self.ranges.values())
                for part in range(self.parts)]
        owner: np.ndarray = np.searchsorted(ends, ids, "right")
        return owner


def _target(data: dict[str, Any], given: str | None, book: _Book, labels: Sequence[str]) -> str:
    able = [t for t in book.types if _named(data, t, labels) and f"{t}/{MASKS[0]}" in data]
    if given is not None and given not in able:
        raise InputError(f"node type '{given}' has no {labels[0]} and train_mask in these parts; "
                         f"types that have: {listing(able)}")
    if given is None and len(able) != 1:
        raise InputError("training needs a node type with 'label' and 'train_mask'; types of these "
                         f"parts that have both: {listing(able)}"
                         + ("; choose one with --target" if able else ""))
    return given or able[0]


def _features(data: dict[str, Any], ntype: str, labels: Sequence[str]) -> str | None:
    """The name of a type's features, None if it has none; as in the reader of DGLGraphs."""
    if (name := _named(data, ntype, FEATURES)) is not None:
        return name
    matrices = [
        name for key, rows in data.items() for owner, _, name in [key.rpartition("/")]
        if owner == ntype and name not in (*LABELS, *labels, *MASKS)
        and rows.is_floating_point() and rows.dim() == 2 and rows.shape[1]]
    if len(matrices) > 1:
        log.warning("node type '%s' has no features in training: none of %s is named feat", ntype,
                    listing(matrices))
    return matrices[0] if len(matrices) == 1 else None


def _named(data: dict[str, Any], ntype: str, names: Sequence[str]) -> str | None:
    return next((name for name in names if f"{ntype}/{name}" in data), None)
