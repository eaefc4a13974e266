"""`metis` and `random`: the methods of `dgl.distributed.partition_graph`, for comparison."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.readers.arrays import check_finite
from dgl_heta.graph.readers.dgl_parts import find_config
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.protocols import PartitionBackend
from dgl_heta.partition.directory import is_partition, others_in
from dgl_heta.partition.part_config import config_name
from dgl_heta.partition.request import PartitionRequest, PartitionResult
from dgl_heta.planning.making import check_parts
from dgl_heta.store import Store
from dgl_heta.store.csc import count_in_degrees
from dgl_heta.store.source_checks import check_source
from dgl_heta.store.structure import copied
from dgl_heta.store.writer import Progress, kept_edge_arrays
from dgl_heta.system.atomic_files import new_directory
from dgl_heta.system.optional import optional
from dgl_heta.system.patching import plain

_METIS_EDGES = 30_000_000  # more take METIS minutes and gigabytes


class DistDGL(PartitionBackend):
    """The methods of `dgl.distributed.partition_graph`, for comparison."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.description = f"dgl.distributed.partition_graph, part_method='{name}'"
        self.needs_target = False

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Progress | None = None) -> PartitionResult:
        for name, given in (("replication", request.replication),
                            ("a memory limit", request.memory_limit),
                            ("cut of relations", request.cutter)):
            if given is not None:
                raise InputError(f"method '{self.name}' is DistDGL's own and knows no {name}; "
                                 "leave it out, or use method meta")

        return partition_with_dgl(source, self.name, request, out, overwrite=overwrite)


def partition_with_dgl(source: GraphSource | Store, method: str, request: PartitionRequest,
                       out: Path, *, overwrite: bool = False) -> PartitionResult:
    """Partition by DGL itself (METIS or random), for comparison: needs the graph in memory.

    Raises
    ------
    InputError
        The graph or the request is wrong, or asks for what only meta-partitioning has; the graph
        has times.
    HetaError
        DGL fails, or the disk is full.
    """
    source.check_untimed(f"method '{method}' goes")
    dgl = optional("dgl", f"method '{method}'", "dgl")
    distributed = optional("dgl.distributed", f"method '{method}'", "dgl")
    schema = source.schema if isinstance(source, Store) else source.schema()
    check_parts(request.parts)
    if request.metapaths:
        raise InputError(f"metapaths go with meta-partitioning, not with method '{method}'")
    for target in request.target:
        schema.check_node_type(target, "target node type")
    graph = to_dgl_graph(source)
    file = config_name(source.manifest.name if isinstance(source, Store) else source.name)
    with new_directory(out, overwrite=overwrite, kind="*.json", others=_others) as directory:
        dgl.seed(request.seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # DGL reports its stages there
                mapping = plain(distributed.partition_graph)(
                    graph, file.removesuffix(".json"), request.parts, str(directory),
                    part_method=method, return_mapping=True)
        except OSError:
            raise
        except Exception as error:
            reason = str(error).partition("Stack trace")[0].strip()
            if "Write incomplete" in reason:
                raise HetaError(f"DGL could not write all of {out}: no space left on the disk; "
                                "nothing was kept") from error
            raise HetaError(f"dgl.distributed.partition_graph (part_method='{method}') failed for "
                            f"{request.parts} partitions, each of which needs a node of every "
                            f"type: {type(error).__name__}: {reason}") from error
        config = json.loads((directory / file).read_text(encoding="utf-8"))
    nodes, edges = (
        {t: ids.numpy() for t, ids in (m if isinstance(m, dict) else {only: m}).items()}
        for m, only in zip(mapping, (graph.ntypes[0], graph.canonical_etypes[0])))
    return PartitionResult(
        out / file, request.parts, nodes, {Relation(*r): ids for r, ids in edges.items()},
        {"nodes": _owned(config["node_map"]), "edges": _owned(config["edge_map"])})


def _others(directory: Path) -> Iterator[Path]:
    """Yield the paths in a directory that is to be overwritten which are of no partition, neither
    DGL's nor ours.

    Raises
    ------
    InputError
        It is a store, which plans elsewhere may refer to.
    """
    if is_partition(directory):
        yield from others_in(directory)
        return
    if Store.is_store(directory):
        raise InputError(f"{directory} is a relation store, which partitions may refer to; it is "
                         "not overwritten: choose another directory")
    for path in directory.iterdir():
        if re.fullmatch(r"part\d+", path.name) and path.is_dir() and not path.is_symlink():
            yield from (inner for inner in path.iterdir() if not (inner.is_file() and (
                inner.suffix == ".dgl" or inner.name == "fused_csc_sampling_graph.pt")))
        elif not (path.suffix == ".json" and path.is_file() and find_config(path)):
            yield path


def _owned(ranges: dict[str, list[list[int]]]) -> list[int]:
    """How many nodes or edges each part owns, from their ranges by type."""
    return [sum(high - low for low, high in own) for own in zip(*ranges.values())]


def metis_parts(store: Store, parts: int) -> dict[str, np.ndarray]:
    """METIS's part of every node, of what `dgl.distributed.partition_graph` gives METIS: all edges
    in one graph, parallel ones too, and the types of nodes, of which each part gets as many.

    Raises
    ------
    InputError
        DGL is not installed.
    """
    import torch

    dgl = optional("dgl", "METIS", "dgl")
    schema = store.schema
    types, relations = sorted(schema.node_counts), sorted(schema.relations)  # in DGL's order
    counts = [schema.node_counts[t] for t in types]
    total, offsets = sum(counts), dict(zip(types, np.cumsum([0, *counts]).tolist()))
    part_of = np.zeros(total, np.int64)
    if parts > 1:
        src, dst = (np.empty(sum(schema.edge_counts.values()), np.int64) for _ in range(2))
        done = 0
        for relation in relations:
            csc = copied(relation, store.relation(relation), schema.node_counts[relation.src])
            rows = np.arange(schema.node_counts[relation.dst]) + offsets[relation.dst]
            end = done + len(csc.indices)
            src[done:end] = csc.indices + offsets[relation.src]
            dst[done:end] = np.repeat(rows, np.diff(csc.indptr))
            done = end
        graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=total)
        # partition_graph balances types unless there is but one of nodes and one of edges.
        balanced = None if len(types) == len(relations) == 1 else torch.repeat_interleave(
            torch.arange(len(types)), torch.tensor(counts))
        with contextlib.redirect_stdout(io.StringIO()):  # DGL reports its stages there
            part_of = dgl.metis_partition_assignment(graph, parts, balanced).numpy()
    return {t: part_of[offsets[t]:offsets[t] + n] for t, n in schema.node_counts.items()}


def metis_or_why(store: Store, parts: int) -> tuple[dict[str, np.ndarray] | None, str | None]:
    """METIS's parts, or why there are none."""
    edges = sum(store.schema.edge_counts.values())
    if edges > _METIS_EDGES:
        return None, f"not run: METIS takes long for {edges:,} edges"
    try:
        optional("dgl", "METIS", "dgl")
    except InputError:
        return None, "DGL is not installed"
    part_of = metis_parts(store, parts)
    if (np.bincount(np.concatenate([*part_of.values()]), minlength=parts) == 0).any():
        # Of few nodes of some types METIS gives one part all: no training would have such parts.
        return None, "METIS leaves a part without nodes"
    return part_of, None


def to_dgl_graph(source: GraphSource | Store) -> Any:
    """The whole graph as a DGLGraph in memory, node arrays as ndata, those of edges as edata.

    Raises
    ------
    InputError
        The graph is wrong, as :func:`dgl_heta.store.write_store` says.
    """
    import dgl
    import torch

    edges: dict[tuple[str, str, str], Any] = {}
    edge_arrays: dict[Relation, dict[str, np.ndarray]] = {}
    if isinstance(source, Store):
        counts = source.manifest.node_counts
        arrays = {t: {k: source.held_array(t, k) for k in named}
                  for t, named in source.manifest.arrays.items()}
        given = source.manifest.given
        for relation in source.schema.relations:
            csc = copied(relation, source.relation(relation), counts[relation.src])
            edges[relation.src, relation.etype, relation.dst] = ("csc", (
                torch.from_numpy(csc.indptr), torch.from_numpy(csc.indices),
                torch.empty(0, dtype=torch.int64)))
            if kept := source.edge_arrays(relation):  # in the order of the source
                ids = source.edge_ids(relation)
                edge_arrays[relation] = {key: array[ids] for key, array in kept.items()}
    else:
        check_source(source)
        counts, arrays, given = source.node_counts, source.node_arrays, source.given
        for relation, stream in source.edges.items():
            count_in_degrees(relation, stream, counts[relation.src], counts[relation.dst], 2**24,
                             lambda count: None)
            chunks = list(stream.chunks(2**24))
            edges[relation.src, relation.etype, relation.dst] = tuple(
                torch.from_numpy(np.concatenate([c[side] for c in chunks]).astype(np.int64))
                for side in (0, 1))
            edge_arrays[relation] = kept_edge_arrays(source, relation, edge_ids=True)
    graph = dgl.heterograph(edges, num_nodes_dict=dict(counts))

    def put(data: Any, kind: Any, key: str, array: np.ndarray) -> None:
        known, rows = given.get(kind, {}).get(key), np.array(array)
        data[key if known is None else known.name] = (
            torch.from_numpy(rows) if known is None else known.tensor(rows))

    for ntype, named in arrays.items():
        for key, array in named.items():
            if key not in given.get(ntype, {}):
                check_finite(key, array, ntype)
            put(graph.nodes[ntype].data, ntype, key, array)
    for relation, named in edge_arrays.items():
        for key, array in named.items():
            put(graph.edges[tuple(relation)].data, relation, key, array)
    return graph
