"""Tables in files, and the graphs that are read of them."""

from __future__ import annotations

import json
from pathlib import Path

from dgl_heta.graph.readers import read_edge_files
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource


def pairs(source: GraphSource, relation: Relation) -> list[tuple[str, str]]:
    """Edges by the ids of their ends."""
    src, dst = next(source.edges[relation].chunks(100))
    ids = source.node_ids
    return [(ids[relation.src].names(u, u + 1)[0], ids[relation.dst].names(v, v + 1)[0])
            for u, v in zip(src.tolist(), dst.tolist())]


def table(directory: Path, name: str, **columns: object) -> dict:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), directory / name)
    return {"table": name}


def described(directory: Path, nodes: dict, edges: list[dict]) -> GraphSource:
    """A graph of tables that are in the directory, read."""
    (directory / "metadata.json").write_text(json.dumps(
        {"name": "g", "nodes": nodes, "edges": edges}))
    return read_edge_files(directory)


def relation(**entry: object) -> dict:
    return {"src": "a", "etype": "to", "dst": "b", "files": ["e.parquet"], **entry}
