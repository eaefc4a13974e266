"""Where a graph comes from: the common form that readers and datasets produce.

A :class:`GraphSource` describes a heterogeneous graph without holding it in memory: edges
are read in chunks, and node arrays may be memory maps. The store writer consumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dgl_heta.errors import InputError, several
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.system.disk import forget

KINDS = ("classification", "multilabel", "regression")
"""Kinds of tasks that a graph can come with."""

MOST_CLASSES = 1 << 16
"""Classes of a task, or labels or numbers per node, at most."""

PIECE = 1 << 22
"""Edges of a piece of arrays and files that can be read from any place."""

TRAIN_MASK = "train_mask"
ALWAYS = np.iinfo(np.int64).min
"""The time of rows and edges that have none: they are always visible (NumPy's NaT)."""
LATEST = 253_402_300_799
"""The last second of the year 9999: a number after it is of another unit."""

MASKS = (TRAIN_MASK, "val_mask", "test_mask")
"""Node arrays that say which nodes are for training, validation and test."""


class EdgeSource(Protocol):
    """Edges of one relation, readable any number of times.

    One that can be read from several places has a method `pieces`, too: its edges as several
    sources, in their order (:func:`share_of`).
    """

    @property
    def num_edges(self) -> int:
        """Number of edges."""

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield `(src, dst)` integer arrays of equal length, at most `size` edges each."""


@dataclass(frozen=True)
class EdgeArrays:
    """Edges as two equally long integer arrays (memory maps are fine)."""

    src: np.ndarray
    dst: np.ndarray

    def __post_init__(self) -> None:
        if self.src.ndim != 1 or self.dst.ndim != 1 or len(self.src) != len(self.dst):
            raise InputError(
                f"source ids have shape {self.src.shape} and destination ids {self.dst.shape}; "
                "both must be one-dimensional and of equal length"
            )

    @property
    def num_edges(self) -> int:
        return len(self.src)

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self.src), size):
            yield (np.asarray(self.src[start:start + size]),
                   np.asarray(self.dst[start:start + size]))
            forget(self.src)
            forget(self.dst)

    def pieces(self) -> list[EdgeSource]:
        return [EdgeArrays(self.src[start:start + PIECE], self.dst[start:start + PIECE])
                for start in range(0, len(self.src), PIECE)]


class JoinedEdges:
    """The edges of several sources, one after the other."""

    def __init__(self, parts: Sequence[EdgeSource]) -> None:
        self._parts = tuple(parts)

    @cached_property
    def num_edges(self) -> int:
        return sum(part.num_edges for part in self._parts)

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part in self._parts:
            yield from part.chunks(size)

    def pieces(self) -> list[EdgeSource]:
        return [piece for part in self._parts for piece in pieces_of(part)]


def pieces_of(edges: EdgeSource) -> Sequence[EdgeSource]:
    """The pieces that can be read by themselves, in their order; of most sources one."""
    pieces: Callable[[], Sequence[EdgeSource]] | None = getattr(edges, "pieces", None)
    return pieces() if pieces else [edges]


def share_of(edges: EdgeSource, index: int, count: int) -> tuple[int, EdgeSource]:
    """One of `count` even shares of edges, and the position of its first edge; whole pieces."""
    if count == 1:
        return 0, edges
    pieces = pieces_of(edges)
    ends = np.cumsum([piece.num_edges for piece in pieces])
    # A piece is of the share in which its middle lies, so that every piece is of one.
    middle = ends - [piece.num_edges / 2 for piece in pieces]
    low, high = np.searchsorted(middle, [ends[-1] * i / count for i in (index, index + 1)])
    return int(ends[low - 1]) if low else 0, JoinedEdges(pieces[low:high])


@dataclass(frozen=True)
class Task:
    """Prediction of `label`, a node array of type `target`, where masks say so.

    `kind` is classification (`num_classes` classes), multilabel or regression (`num_classes`
    columns). Masks are named `train_mask`, `val_mask`, `test_mask` (bool, one entry per node).
    `unlabelled` is a value of labels that stands for none, besides NaN: these count in no loss and
    in no metric (:class:`dgl_heta.graph.labels.NodeLabels`).
    """

    target: str
    num_classes: int
    label: str = "label"
    kind: str = "classification"
    unlabelled: float | None = None

    def __str__(self) -> str:
        what = {"classification": ("class", "es"), "multilabel": ("label", "s")}.get(
            self.kind, ("number", "s"))
        return (f"{self.kind} of {self.target} by {self.label}, {self.num_classes:,} {what[0]}"
                f"{what[1] * (self.num_classes != 1)}")


@dataclass(frozen=True)
class Given:
    """A node or edge array that is kept as a graph in memory has it, whatever its form.

    Attributes
    ----------
    name : of the array on the graph.
    dtype, shape : of the tensor; `dtype` is PyTorch's name of it, such as "bool".
    sha256 : of the `.npy` file that holds it (:func:`as_numpy`,
        :func:`~dgl_heta.system.checksums.npy_sum`); "" of edges that come in another order than
        the graph had them, of which a store takes it when it is written.
    unfit : why training cannot read it; "" if it can.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    unfit: str = ""

    def tensor(self, rows: np.ndarray) -> Any:
        """Rows that are held of it as a tensor of its dtype."""
        import torch

        if self.dtype == "bfloat16":  # the upper halves: PyTorch's rounding changes NaN
            halves = (rows.view(np.uint32) >> 16).astype(np.uint16)
            return torch.from_numpy(halves.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(rows).to(getattr(torch, self.dtype))


def as_numpy(tensor: Any) -> np.ndarray:
    """A tensor as the array that holds it. bfloat16 and complex32, which NumPy lacks, are held as
    float32 and complex64.

    Raises
    ------
    TypeError, RuntimeError
        NumPy lacks its dtype, or it is no dense tensor.
    """
    import torch

    wider = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
    array: np.ndarray = tensor.detach().cpu().resolve_conj().resolve_neg().to(
        wider.get(tensor.dtype, tensor.dtype)).numpy()
    return array


def part_tensor(rows: np.ndarray, known: Given | None) -> Any:
    """Rows of a node or edge array as a tensor, as DGL's own partitions have it: bool as uint8.

    `known` is what is known of an array that is kept as it was given.
    """
    import torch

    tensor = torch.from_numpy(rows) if known is None else known.tensor(rows)
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


@dataclass
class GraphSource:
    """A heterogeneous graph to be written to a store.

    Parameters
    ----------
    name : name of the graph.
    node_counts : node type to number of nodes.
    edges : relation to its edges, in canonical order.
    node_arrays : node type to named arrays with one row per node. The static features of a
        type are its array `feat` (floating point, two-dimensional); types without it get
        learnable features in training.
    task : what to train for, when known.
    edge_arrays : relation to named arrays with one row per edge. A store that keeps edge ids holds
        those of numbers.
    given : node type or relation to those of its arrays that are kept as a graph in memory has
        them. They need not be in any form; training converts them when it reads.
    info : where the data comes from, free text per key, shown by `dgl-heta inspect`. `classes`, a
        list of as many texts as the task has classes, are their names.
    node_ids : node type to the ids that its nodes have for whoever made the graph; predictions
        name nodes by them.
    times : node type to the time of each of its rows, relation to that of each of its edges, in the
        order of `edges`: int64, seconds since 1970 in UTC, :data:`ALWAYS` where there is none. An
        edge is there from its own time on, if it has one, and from its source row's.
    feature_dtype : what a store keeps static features as, "float16" or "int8" with a scale for each
        column (:mod:`dgl_heta.store.encoding`); "": as they are.
    check_seeds : refuses the table of seeds that a reader has made, if one is of no node of a type.
    write_seeds : writes the table of seeds that a reader has made beside the graph, if it has. The
        commands call it when the graph is written.
    """

    name: str
    node_counts: dict[str, int]
    edges: dict[Relation, EdgeSource]
    node_arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    task: Task | None = None
    info: dict[str, Any] = field(default_factory=dict)
    edge_arrays: dict[Relation, dict[str, np.ndarray]] = field(default_factory=dict)
    node_ids: dict[str, NodeIds] = field(default_factory=dict)
    given: dict[Any, dict[str, Given]] = field(default_factory=dict)
    times: dict[Any, np.ndarray] = field(default_factory=dict)
    feature_dtype: str = ""
    write_seeds: Callable[[], None] | None = None
    check_seeds: Callable[[str], None] | None = None

    def check_untimed(self, who: str) -> None:
        """Raise an :class:`InputError` if the graph has times, as `who` goes by none: what is later
        than a seed would reach it."""
        if self.times:
            raise InputError(f"{who} by no times, but graph '{self.name}' has some: what is later "
                             "than a prediction would reach it; partition it by method meta and "
                             "use `dgl-heta train`, or leave the times out")

    def without_empty(self) -> GraphSource:
        """The graph without relations that have no edges, and without node types that have no nodes
        or no other relations; `info["left out"]` names them. The target stays."""
        target = self.task.target if self.task else None
        edges = {r: e for r, e in self.edges.items() if e.num_edges}
        joined = {t for r in edges for t in (r.src, r.dst)}
        counts = {t: n for t, n in self.node_counts.items() if t in joined or t == target}
        left = [*(f"'{r}', which has no edges" for r in self.edges if r not in edges),
                *(f"'{t}', which has no {'edges' if n else 'nodes'}"
                  for t, n in self.node_counts.items() if t not in counts)]
        if not left:
            return self
        return replace(self, node_counts=counts, edges=edges, info={**self.info, "left out": left},
                       node_arrays={t: a for t, a in self.node_arrays.items() if t in counts},
                       edge_arrays={r: a for r, a in self.edge_arrays.items() if r in edges},
                       node_ids={t: i for t, i in self.node_ids.items() if t in counts},
                       given={k: g for k, g in self.given.items() if k in counts or k in edges},
                       times={k: t for k, t in self.times.items() if k in counts or k in edges})

    def schema(self) -> Schema:
        """The schema of the graph, with bytes per feature row."""
        widths = {}
        for ntype, arrays in self.node_arrays.items():
            feat = arrays.get("feat")
            if feat is not None:
                kept = np.dtype(self.feature_dtype or feat.dtype)
                widths[ntype] = int(kept.itemsize * np.prod(feat.shape[1:], dtype=np.int64))
        return Schema(dict(self.node_counts),
                      {Relation(*r): e.num_edges for r, e in self.edges.items()}, widths)


def graph_names(of: Any, ntype: str) -> dict[str, str]:
    """Arrays of a type that the graph in memory has under another name: that name.

    `of` is a :class:`GraphSource`, or the manifest of a store.
    """
    renamed = of.info.get("renamed")  # of arrays that are not kept as they were given
    names = renamed.get(ntype) if isinstance(renamed, dict) else None
    return {**(names if isinstance(names, dict) else {}),
            **{name: known.name for name, known in of.given.get(ntype, {}).items()}}


def check_seconds(times: np.ndarray, name: Callable[[int], str]) -> None:
    """Refuse times after the year 9999, which are no seconds; `name` says what has one."""
    if times.max(initial=LATEST) > LATEST:
        wrong = np.flatnonzero(times > LATEST)
        raise InputError(f"{name(int(wrong[0]))} is at {times[wrong[0]]}, which is after the year "
                         "9999; times are whole seconds since 1970, so divide milliseconds by "
                         f"1,000; {several(len(wrong), 'time')} of {len(times):,} are such")
