"""Partitions in DistDGL's format, a part at a time: what plain DGL loads and trains on.

This module imports dgl, which writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta import GraphSource, InputError
from dgl_heta.tools import check_room, graph_names, new_array, optional, part_tensor
from dgl_heta_catgnn.numbering import NodeNumbers
from dgl_heta_catgnn.spool import PartEdges, Spooled

_FRAME = 2**16  # bytes of a file of DGL's beside its arrays, at most
ORIG_IDS = "orig_ids"
"""The directory with ids in the source by new ids: `nodes-I.npy` and `edges-I.npy`, by type."""


class Parts:
    """Writes parts into a directory, one after the other.

    Parameters
    ----------
    source : the graph; of its arrays only the rows of a part are read at a time.
    formats : of the part's graph, as DGL's `graph_formats`.
    """

    def __init__(self, source: GraphSource, numbers: NodeNumbers, spooled: Spooled,
                 directory: Path, formats: Any = None) -> None:
        self._dgl = optional("dgl", "writing parts for DistDGL", "dgl")
        for name in (*source.node_counts, *(r.etype for r in source.edges)):
            if ":" in name:
                raise InputError(f"'{name}' has a colon, by which DistDGL's part_config separates "
                                 "names; rename the node type or edge type")
        self._source, self._numbers, self._spooled = source, numbers, spooled
        self._directory, self._formats = directory, formats
        self._typed = len(source.node_counts) > 1 or len(source.edges) > 1
        ids = directory / ORIG_IDS
        ids.mkdir()
        self._orig_edges = [
            new_array(ids / f"edges-{i}.npy", np.int64,
                      (int((ranges[:, 1] - ranges[:, 0]).sum()),))
            for i, ranges in enumerate(spooled.ranges)]
        for i in range(len(source.node_counts)):
            np.save(ids / f"nodes-{i}.npy", np.concatenate(
                [numbers.source_ids(i, part) for part in range(numbers.ranges.shape[1])]))

    def write(self, part: int, owner: Callable[[np.ndarray], np.ndarray]) -> int:
        """Write a part; returns its nodes, halo nodes included. `owner` is by new ids."""
        own = self._spooled.own[part]
        folder = self._directory / f"part{part}"
        folder.mkdir()
        positions, order = self._own_edges(own, part)
        self._save(folder / "edge_feat.dgl", {
            f"{':'.join(relation)}/{name}": self._rows(relation, name, array, positions[i])
            for i, relation in enumerate(self._source.edges)
            for name, array in self._source.edge_arrays.get(relation, {}).items()})
        del positions
        nodes = self._graph(part, order, owner, folder / "graph.dgl")
        self._save(folder / "node_feat.dgl", {
            f"{ntype}/{graph_names(self._source, ntype).get(name, name)}":
                self._rows(ntype, name, array, self._numbers.source_ids(i, part))
            for i, ntype in enumerate(self._source.node_counts)
            for name, array in self._source.node_arrays.get(ntype, {}).items()})
        own.delete()
        if self._spooled.halo:
            self._spooled.halo[part].delete()
        return nodes

    def config(self, name: str, method: str, hops: int) -> dict[str, Any]:
        """DistDGL's part_config."""
        relations, types = list(self._source.edges), list(self._source.node_counts)
        parts = range(self._numbers.ranges.shape[1])
        return {
            "graph_name": name, "num_nodes": sum(self._source.node_counts.values()),
            "num_edges": sum(len(ids) for ids in self._orig_edges), "part_method": method,
            "num_parts": len(parts), "halo_hops": hops,
            "node_map": dict(zip(types, self._numbers.ranges.tolist())),
            "edge_map": dict(zip((":".join(r) for r in relations), self._spooled.ranges.tolist())),
            "ntypes": {t: i for i, t in enumerate(types)},
            "etypes": {":".join(r): i for i, r in enumerate(relations)},
            **{f"part-{i}": {"node_feats": f"part{i}/node_feat.dgl",
                             "edge_feats": f"part{i}/edge_feat.dgl",
                             "part_graph": f"part{i}/graph.dgl"} for i in parts}}

    def save_config(self, file: Path, method: str, hops: int) -> None:
        for ids in self._orig_edges:
            ids.flush()
        config = self.config(file.stem, method, hops)
        file.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def _own_edges(self, own: PartEdges, part: int) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Positions in the source per relation, noted as original ids; the order by new ids.

        Files are in the order of the stream, which within a relation is that of the new ids; None
        says that relations follow one another already.
        """
        relation, positions = own.column("relation"), own.column("position")
        order = None
        if (relation[1:] < relation[:-1]).any():
            order = np.argsort(relation, kind="stable")
            positions = positions[order]
        sizes = self._spooled.ranges[:, part, 1] - self._spooled.ranges[:, part, 0]
        pieces = np.split(positions, np.cumsum(sizes)[:-1])
        for i, piece in enumerate(pieces):
            before = int((self._spooled.ranges[i, :part, 1]
                          - self._spooled.ranges[i, :part, 0]).sum())
            self._orig_edges[i][before:before + len(piece)] = piece
        return pieces, order

    def _rows(self, kind: Any, name: str, array: np.ndarray, ids: np.ndarray) -> Any:
        """Rows of an array or memory map of a node type or relation, copied."""
        return part_tensor(np.ascontiguousarray(array[ids]),
                           self._source.given.get(kind, {}).get(name))

    def _graph(self, part: int, order: np.ndarray | None,
               owner: Callable[[np.ndarray], np.ndarray], file: Path) -> int:
        """Write a part's graph: its own nodes and edges first, in the order of their new ids."""
        import torch

        dgl, (low, high) = self._dgl, self._numbers.part(part)
        src, dst = self._column(part, "src", order), self._column(part, "dst", order)
        own = len(src) if not self._spooled.halo else int(
            self._spooled.own[part].file("rank").stat().st_size // 8)
        around = np.unique(np.concatenate([ends[(ends < low) | (ends >= high)]
                                           for ends in (src, dst)]))
        nodes = np.concatenate([np.arange(low, high), around])
        src, dst = (_local(ends, low, high, around) for ends in (src, dst))
        graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=len(nodes))
        del src, dst
        graph.ndata[dgl.NID] = torch.from_numpy(nodes)
        graph.ndata["inner_node"] = torch.from_numpy((np.arange(len(nodes)) < high - low)
                                                     .astype(np.uint8))
        graph.ndata["part_id"] = torch.from_numpy(owner(nodes).astype(np.int64))
        relation = self._column(part, "relation", order)
        ids = (self._spooled.ranges[relation, self._column(part, "owner", order), 0]
               + self._column(part, "rank", order))
        graph.edata[dgl.EID] = torch.from_numpy(ids)
        graph.edata["inner_edge"] = torch.from_numpy((np.arange(len(ids)) < own).astype(np.uint8))
        if self._typed:
            graph.ndata[dgl.NTYPE] = torch.from_numpy(
                self._numbers.types(nodes).astype(np.int16))
            graph.edata[dgl.ETYPE] = torch.from_numpy(relation)
        data = sum(frame[name].nbytes for frame in (graph.ndata, graph.edata) for name in frame)
        # At most three formats of two or three arrays; DGL does not notice that a file was cut.
        check_room(self._directory, data + (9 * len(ids) + 2 * len(nodes)) * 8 + _FRAME)
        dgl.save_graphs(str(file), [self._sorted(graph)], formats=self._formats)
        return len(nodes)

    def _column(self, part: int, name: str, order: np.ndarray | None) -> np.ndarray:
        """A column of the part's own edges in order, and of those of its halo nodes behind them."""
        values = self._spooled.own[part].column(name)
        if order is not None:
            values = values[order]
        if self._spooled.halo:
            values = np.concatenate([values, self._spooled.halo[part].column(name)])
        return values

    def _sorted(self, graph: Any) -> Any:
        """With in-edges by type where formats are asked for, as DGL's own partitions have them."""
        formats = self._formats or ()
        if self._typed and "csr" in formats:
            graph = self._dgl.sort_csr_by_tag(graph, graph.edata[self._dgl.ETYPE], tag_type="edge")
        if self._typed and "csc" in formats:
            graph = self._dgl.sort_csc_by_tag(graph, graph.edata[self._dgl.ETYPE], tag_type="edge")
        return graph

    def _save(self, file: Path, tensors: dict[str, Any]) -> None:
        check_room(self._directory, sum(x.nbytes for x in tensors.values()) + _FRAME)
        self._dgl.data.utils.save_tensors(str(file), tensors)


def _local(ends: np.ndarray, low: int, high: int, around: np.ndarray) -> np.ndarray:
    """Ids in a part's graph: its own nodes, then those around, ascending."""
    inside = (ends >= low) & (ends < high)
    return np.where(inside, ends - low, high - low + np.searchsorted(around, ends))
