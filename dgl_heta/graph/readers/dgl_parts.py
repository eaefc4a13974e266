"""DistDGL's parts as one graph again: what `dgl.distributed.partition_graph` wrote (METIS, random),
and ParMETIS's pipeline, which has the same files.

A part has the nodes and edges that it owns, beside copies of others' (halo). Only owned ones are
read. DGL renumbers both; the original ids are taken where something has kept them
(:class:`Numbers`). Files of graphs and arrays are read by DGL, whose format has arrays, names and
sizes, nothing that can be run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, quoted
from dgl_heta.graph.readers.dgl_files import load_graph, load_tensors, try_files
from dgl_heta.graph.readers.dgl_graph import read_dgl_graph
from dgl_heta.graph.readers.torch_file import read_saved
from dgl_heta.graph.schema import JSON_BYTES, Relation, read_json
from dgl_heta.graph.source import GraphSource
from dgl_heta.system.limited import read_limited
from dgl_heta.system.optional import optional

IDS = ("auto", "original", "parts")
MAPPINGS = {"nodes": "node_mapping.pt", "edges": "edge_mapping.pt"}
"""Files for the results of `return_mapping`, if a program has saved them beside the part_config."""
ORIGINAL = {"nodes": "orig_nids.dgl", "edges": "orig_eids.dgl"}
"""Files of a part in which ParMETIS's pipeline keeps original ids."""


def find_config(path: Path) -> Path | None:
    """The part_config of DistDGL's parts at a path, the file or its directory; None if there is
    none, or more than one."""
    configs = [file for file in ([path] if path.suffix == ".json" else sorted(path.glob("*.json")))
             if file.is_file() and _is_config(file)]
    return configs[0] if len(configs) == 1 else None


def _is_config(file: Path) -> bool:
    try:
        text = read_limited(file, JSON_BYTES)
        if b'"part_graph' not in text:
            return False
        first = json.loads(text)["part-0"]
        return any(key in first for key in ("part_graph", "part_graph_graphbolt"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def read_parts(path: str | Path, ids: str = "auto") -> GraphSource:
    """The graph that DistDGL's parts hold, with its node data; edge data are carried along.

    Parameters
    ----------
    path : the part_config, or the directory that holds it.
    ids : `original` ids of nodes and edges, those of the `parts`, or (auto) original ones where
        they are known.

    Raises
    ------
    InputError
        No such parts, damaged ones, original ids that are not known; DGL is not installed.
    """
    dgl = optional("dgl", "reading DistDGL's parts", "dgl")
    config = find_config(Path(path))
    if config is None:
        raise InputError(f"{path} is no part_config of DistDGL, and holds none or several")
    if ids not in IDS:
        raise InputError(f"ids is {quoted(ids)}; it must be one of {listing(IDS)}")
    parts = _Parts(config, dgl)
    graph, notes = parts.graph(ids)
    source = read_dgl_graph(graph, parts.name, as_given=True)
    source.info |= {"format": "DistDGL's parts", "path": str(config), "notes": [
        *notes, *source.info.get("notes", [])]}
    return source


@dataclass
class Numbers:
    """The numbers that DistDGL gave to nodes or edges: part by part a range for each kind.

    Attributes
    ----------
    kinds : node types, or relations.
    ranges : kind → (parts, 2), the half-open range of each part, in the numbers of all kinds.
    """

    what: str
    kinds: list[Any]
    ranges: dict[Any, np.ndarray]

    def __post_init__(self) -> None:
        low = np.concatenate([self.ranges[kind][:, 0] for kind in self.kinds])
        high = np.concatenate([self.ranges[kind][:, 1] for kind in self.kinds])
        kind = np.repeat(np.arange(len(self.kinds)), [len(self.ranges[k]) for k in self.kinds])
        before = np.concatenate([np.cumsum(sizes) - sizes for sizes in (
            np.diff(self.ranges[k], axis=1)[:, 0] for k in self.kinds)])
        filled = np.flatnonzero(high > low)
        order = filled[np.argsort(low[filled], kind="stable")]
        self._low, self._high = low[order], high[order]
        self._kind, self._before = kind[order], before[order]
        ends = np.concatenate([[0], self._high])
        if (high < low).any() or not np.array_equal(self._low, ends[:-1]):
            raise InputError(f"the ranges of {self.what} do not follow each other from 0 on")

    @property
    def total(self) -> int:
        return int(self._high[-1]) if len(self._high) else 0

    def count(self, kind: Any) -> int:
        """How many there are of a kind."""
        return int(np.diff(self.ranges[kind], axis=1).sum())

    def typed(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each one's kind in `kinds`, and its number in its kind."""
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.total:
            raise InputError(f"the numbers of {self.what} are not within 0 … {self.total - 1}")
        at = np.searchsorted(self._low, numbers, side="right") - 1
        return self._kind[at], numbers - self._low[at] + self._before[at]


class _Parts:
    """The parts of one part_config."""

    def __init__(self, config: Path, dgl: Any) -> None:
        self.config, self.directory, self.dgl = config, config.parent, dgl
        data = read_json(config, "part_config")
        try:
            self.name = str(data["graph_name"])
            self.count: int = data["num_parts"]
            if type(self.count) is not int:  # a number such as 2.5 or Infinity
                raise TypeError(f"num_parts is {quoted(self.count)}")
            self.files: list[Mapping[str, str]] = [data[f"part-{i}"] for i in range(self.count)]
            ntypes = sorted(data["ntypes"], key=data["ntypes"].__getitem__)
            etypes = sorted(data["etypes"], key=data["etypes"].__getitem__)
            relations = {etype: Relation(*etype.split(":")) for etype in etypes}
            self.nodes = Numbers("nodes", ntypes, {
                t: self._ranges(data["node_map"][t]) for t in ntypes})
            self.edges = Numbers("edges", list(relations.values()), {
                relations[e]: self._ranges(data["edge_map"][e]) for e in etypes})
            graphs = [self._path(files["part_graph"]) for files in self.files
                      if "part_graph" in files]
        except InputError as error:
            raise InputError(f"part_config {config}: {error}") from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"part_config {config} is not as DGL writes it: {error!r}") from None
        if self.count < 1 or len(graphs) != self.count:
            raise InputError(f"{config} names parts in GraphBolt's form alone, which is a pickle "
                             "and is not loaded; partition with part_graph, DGL's own form")
        if unknown := {t for r in self.edges.kinds for t in (r.src, r.dst)} - {*ntypes}:
            raise InputError(f"part_config {config}: relations join {listing(sorted(unknown))}, "
                             "no node types of it")

    def _ranges(self, given: Any) -> np.ndarray:
        ranges = np.asarray(given)
        if ranges.shape != (self.count, 2) or ranges.dtype.kind != "i":
            raise InputError(f"a map of nodes or edges has {quoted(given)}; it must have a range "
                             f"of ids for each of {self.count} parts")
        return ranges.astype(np.int64)

    def _path(self, name: Any) -> Path:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} names no file")
        return self.directory / name

    def graph(self, ids: str) -> tuple[Any, list[str]]:
        """The whole graph as a DGLGraph, and notes."""
        import torch

        try_files([self._path(part["part_graph"]) for part in self.files],
                  [self._path(part[key]) for part in self.files
                   for key in ("node_feats", "edge_feats") if key in part])
        ends = self._ends()
        data = {"nodes": self._data("node_feats", self.nodes, str),
                "edges": self._data("edge_feats", self.edges, ":".join)}
        order, notes = self._order(ids)
        for what, originals in order.items():
            for kind, original in originals.items():
                back = np.argsort(original)  # a permutation: its inverse
                data[what][kind] = {name: rows[torch.from_numpy(back)]
                                    for name, rows in data[what][kind].items()}
                if what == "edges":
                    ends[kind] = ends[kind][:, back]
        for relation, pair in ends.items():
            for row, ntype in enumerate((relation.src, relation.dst)):
                if ntype in order["nodes"]:
                    pair[row] = order["nodes"][ntype][pair[row]]
        graph = self.dgl.heterograph(
            {tuple(r): tuple(torch.from_numpy(side.copy()) for side in pair)
             for r, pair in ends.items()},
            num_nodes_dict={t: self.nodes.count(t) for t in self.nodes.kinds})
        for ntype, arrays in data["nodes"].items():
            graph.nodes[ntype].data.update(arrays)
        for relation, arrays in data["edges"].items():
            graph.edges[tuple(relation)].data.update(arrays)
        return graph, notes

    def _ends(self) -> dict[Relation, np.ndarray]:
        """Relation → (2, edges), the ends of each edge by the parts' numbers."""
        ends = {r: np.full((2, self.edges.count(r)), -1, np.int64) for r in self.edges.kinds}
        for part, files in enumerate(self.files):
            file = self._path(files["part_graph"])
            try:
                self._add_part(load_graph(file), part, ends)
            except InputError as error:
                raise InputError(f"part {part} of {self.config} ({file}) is damaged: {error}"
                                 ) from None
        for relation, pair in ends.items():
            if (missing := int((pair[0] < 0).sum())):
                raise InputError(f"the parts of {self.config} lack {missing:,} of "
                                 f"{pair.shape[1]:,} edges of '{relation}'")
        return ends

    def _add_part(self, graph: Any, part: int, ends: dict[Relation, np.ndarray]) -> None:
        node_ids, own = self._fields(graph.ndata, "nodes", self.dgl.NID, "inner_node")
        numbers, inner = self._fields(graph.edata, "edges", self.dgl.EID, "inner_edge")
        self._check_owned(self.nodes, node_ids[own == 1], part)
        inner = inner == 1
        self._check_owned(self.edges, numbers[inner], part)
        kinds, ids = self.edges.typed(numbers[inner])
        typed_ends = [self.nodes.typed(node_ids[side.numpy()[inner]])
                 for side in graph.edges(order="eid")]
        for kind, relation in enumerate(self.edges.kinds):
            chosen = kinds == kind
            for row, (types, per_type) in enumerate(typed_ends):
                wanted = self.nodes.kinds.index((relation.src, relation.dst)[row])
                if (types[chosen] != wanted).any():
                    raise InputError(f"an edge of '{relation}' joins other node types")
                ends[relation][row, ids[chosen]] = per_type[chosen]

    @staticmethod
    def _fields(data: Any, what: str, *names: str) -> list[np.ndarray]:
        for name in names:
            if name not in data:
                raise InputError(f"its {what} have no {name}")
        return [data[name].numpy() for name in names]

    @staticmethod
    def _check_owned(numbers: Numbers, owned: np.ndarray, part: int) -> None:
        """Each number of a part's ranges must be there once, and no other."""
        wanted = [np.arange(*numbers.ranges[kind][part]) for kind in numbers.kinds]
        if not np.array_equal(np.sort(owned), np.sort(np.concatenate(wanted))):
            raise InputError(f"the {numbers.what} that it owns are not those of the part_config")

    def _data(self, key: str, numbers: Numbers, shown: Any) -> dict[Any, dict[str, Any]]:
        """Kind → name → rows of all parts, in the order of the parts' numbers."""
        import torch

        names = {shown(kind): kind for kind in numbers.kinds}
        pieces: dict[Any, dict[str, list[Any]]] = {kind: {} for kind in numbers.kinds}
        for part, files in enumerate(self.files):
            if key not in files:
                continue
            file = self._path(files[key])
            for label, rows in load_tensors(file).items():
                kind, _, name = label.partition("/")
                size = int(np.diff(numbers.ranges[names[kind]][part])[0]) if kind in names else 0
                if kind not in names or len(rows) != size:
                    raise InputError(f"{file} has {len(rows):,} rows '{label}'; the part has "
                                     f"{size:,} {numbers.what} of that kind")
                pieces[names[kind]].setdefault(name, []).append(rows)
        for kind, arrays in pieces.items():
            for name, rows in arrays.items():
                if sum(map(len, rows)) != numbers.count(kind):
                    raise InputError(f"'{shown(kind)}/{name}' is not in all parts of {self.config}")
        return {kind: {name: torch.cat(rows) for name, rows in arrays.items()}
                for kind, arrays in pieces.items()}

    def _order(self, ids: str) -> tuple[dict[str, dict[Any, np.ndarray]], list[str]]:
        """For nodes and edges, kind → original id of each one; empty where they are not known."""
        original_ids: dict[str, dict[Any, np.ndarray]] = {"nodes": {}, "edges": {}}
        if ids == "parts":
            return original_ids, ["ids are those of the parts"]
        notes = []
        for what, numbers in (("nodes", self.nodes), ("edges", self.edges)):
            where, given = self._kept(what)
            for kind in numbers.kinds if where else ():
                original = given.get(kind)
                if original is None or not np.array_equal(np.sort(original), np.arange(
                        numbers.count(kind))):
                    name = kind if what == "nodes" else ":".join(kind)
                    raise InputError(f"{where} has no original ids of '{name}' that are each of 0 "
                                     f"… {numbers.count(kind) - 1} once; with ids=parts it is not "
                                     "read")
                original_ids[what][kind] = original.astype(np.int64)
            if not where and ids == "original":
                raise InputError(f"nothing beside {self.config} has the original ids of {what}: "
                                 f"neither {MAPPINGS[what]} (what return_mapping returned, saved "
                                 f"by torch.save) nor {ORIGINAL[what]} in the parts; with "
                                 "ids=parts those of the parts are taken")
            notes.append(f"ids of {what} are " + (f"the original ones, by {where}" if where
                                                  else "those of the parts"))
        return original_ids, notes

    def _kept(self, what: str) -> tuple[str, dict[Any, np.ndarray]]:
        """Where original ids were kept ("" for nowhere), and the ids of each kind."""
        numbers = self.nodes if what == "nodes" else self.edges
        saved = self.directory / MAPPINGS[what]
        if saved.is_file():
            given = read_saved(saved)
            if not isinstance(given, dict):
                given = {numbers.kinds[0]: given} if len(numbers.kinds) == 1 else {}
            kinds = {key if isinstance(key, str) and what == "nodes" else tuple(
                key.split(":") if isinstance(key, str) else key): np.asarray(value)
                for key, value in given.items()}
            return str(saved), {kind: kinds[kind] for kind in numbers.kinds if kind in kinds}
        files = [self._path(part["part_graph"]).with_name(ORIGINAL[what]) for part in self.files]
        if not all(file.is_file() for file in files):
            return "", {}
        try_files(tensors=files)
        loaded = [load_tensors(file) for file in files]
        names = {kind: kind if what == "nodes" else ":".join(kind) for kind in numbers.kinds}
        return f"{ORIGINAL[what]} of the parts", {
            kind: np.concatenate([part[name].numpy() for part in loaded])
            for kind, name in names.items() if all(name in part for part in loaded)}
