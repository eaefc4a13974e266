"""From a graph to parts on disk: assign, number, read the edges once more, write part by part."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dgl_heta import GraphSource, PartitionRequest, PartitionResult
from dgl_heta.tools import check_finite, check_source, config_name, new_directory
from dgl_heta_catgnn.distdgl import ORIG_IDS, Parts
from dgl_heta_catgnn.numbering import number_nodes
from dgl_heta_catgnn.spool import spool
from dgl_heta_catgnn.streams import EdgeStream

if TYPE_CHECKING:
    from dgl_heta_catgnn.partitioner import Assignment, StreamPartitioner


def write_parts(partitioner: StreamPartitioner, source: GraphSource, request: PartitionRequest,
                out: Path, *, hops: int, overwrite: bool,
                progress: Callable[[str, float], None]) -> PartitionResult:
    """Partition a graph and write it in DistDGL's format, whole or not at all.

    The original ids are beside the parts, in the directory `orig_ids`: a memory map for each node
    type and relation, by new ids, which the result has, too.
    """
    check_source(source)
    for ntype, arrays in source.node_arrays.items():
        # What a graph in memory has is kept as it is, for scripts.
        if "feat" in arrays and "feat" not in source.given.get(ntype, {}):
            check_finite("feat", arrays["feat"], ntype)
    size, parts = partitioner.settings.chunk, request.parts
    stream = EdgeStream.of_graph(source)
    file = config_name(source.name)
    with new_directory(out, overwrite=overwrite, kind="*.json", others=_others) as directory:
        progress("assigning", 0.0)
        assignment = partitioner.assign(stream, parts, request.seed)
        owner, statistics = assignment.owner, _statistics(assignment, stream)
        del assignment
        numbers = number_nodes(owner, source.node_counts, parts)
        edges, done = max(stream.num_edges, 1), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress("reading edges", 0.3 + 0.4 * done / edges)

        (directory / "spool").mkdir()
        spooled = spool(stream, owner, numbers, parts, hops, directory / "spool", size, advance)
        writer = Parts(source, numbers, spooled, directory, request.script.graph_formats)
        nodes = []
        for part in range(parts):
            progress(f"writing part {part}", 0.7 + 0.3 * part / parts)
            nodes.append(writer.write(part, lambda new: owner[numbers.old[new]]))
        shutil.rmtree(directory / "spool")
        writer.save_config(directory / file, partitioner.name, hops)
    statistics |= {
        "nodes": np.bincount(owner, minlength=parts).tolist(), "nodes_with_halo": nodes,
        "edges": (spooled.ranges[:, :, 1] - spooled.ranges[:, :, 0]).sum(axis=0).tolist(),
        "replication_factor": sum(nodes) / max(len(owner), 1)}
    return PartitionResult(
        out / file, parts,
        {t: _orig_ids(out, "nodes", i) for i, t in enumerate(source.node_counts)},
        {r: _orig_ids(out, "edges", i) for i, r in enumerate(stream.relations)}, statistics)


def _statistics(assignment: Assignment, stream: EdgeStream) -> dict[str, Any]:
    """Return the figures of the assignment; balance is the largest part in shares of an even one.
    """
    loads = {"balance_of_nodes": assignment.owned()}
    if assignment.edges is not None:
        loads["balance_of_assigned_edges"] = assignment.edges
    return {**assignment.figures, **{name: float(load.max() * assignment.parts / max(load.sum(), 1))
                               for name, load in loads.items()}}


def _others(directory: Path) -> Iterator[Path]:
    """Yield the paths in a directory of parts that :func:`write_parts` does not write."""
    for path in directory.iterdir():
        folder = path.is_dir() and not path.is_symlink()
        if folder and (path.name == ORIG_IDS or re.fullmatch(r"part\d+", path.name)):
            ending = ".npy" if path.name == ORIG_IDS else ".dgl"
            yield from (inner for inner in path.iterdir()
                        if inner.suffix != ending or not inner.is_file())
        elif not (path.suffix == ".json" and path.is_file() and _is_config(path)):
            yield path


def _is_config(file: Path) -> bool:
    """Return whether a file is a part_config of DistDGL's."""
    try:
        return "part-0" in json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _orig_ids(out: Path, kind: str, index: int) -> np.ndarray:
    """A map of original ids, which stays on the disk; what is written to it does not get there."""
    ids: np.ndarray = np.load(out / ORIG_IDS / f"{kind}-{index}.npy", mmap_mode="c")
    return ids
