"""Replication factors of the stream partitioners of plugins/catgnn, and of METIS where DGL is.

Σ|V_i| / |V| after the second stream, in which every node's neighbours come to its owner (CATGNN,
§3.2 and Fig. 6). Owners of the four partitioners of edges are drawn at random. METIS has one hop of
halo nodes.

    python scripts/bench/replication.py --graphs communities,debian --parts 4,8,16
    python scripts/bench/replication.py --graphs communities --volumes 0.1,0.3,1,3 --refine 0,1

`--graphs` are communities, rmat, grid, the data sets of `dgl-heta datasets`, with options
(`git:PATH`, `synthetic-mag:scale=0.01`), and whatever else `dgl-heta partition` reads. "Printed"
is SPRING as its Algorithm 1 is printed: the volume limit of 2PS-L, no pass after it. `--volumes`
compares SPRING with several limits on the volume of clusters, and `--refine` with several numbers
of passes after them, instead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import Any

import numpy as np
from common import Column, finish, machine, markdown, opened, parser, table
from dgl_heta_catgnn import EdgeStream, Replicas, Spring, built_in
from dgl_heta_catgnn.communities import planted, simple

COLUMNS = (*(Column(m, f"factors/{m}", digits=3) for m in (
    "spring", "printed", "hdrf", "dbh", "powergraph", "2ps-l", "metis")),
    Column("RF-1: to mean", "to mean"), Column("to best", "to best"),
    Column("balance of spring", "balance", digits=3), Column("clusters", "clusters", digits=0),
    Column("merged", "merged", digits=0))


def both_ways(src: np.ndarray, dst: np.ndarray, nodes: int, seed: int = 0) -> EdgeStream:
    """An undirected graph in random order, each edge once in both directions."""
    one, two = simple(src, dst, nodes, seed)
    return EdgeStream.of_chunks([(one, two), (two, one)], nodes)


def communities(size: int, mixed: float) -> EdgeStream:
    """Planted communities of about 100 nodes, power-law degrees; a share of edges goes anywhere."""
    src, dst, _ = planted(size, mixed)
    return both_ways(src, dst, size)


def rmat(size: int) -> EdgeStream:
    """R-MAT (Chakrabarti et al., 2004) with a, b, c, d of 0.57, 0.19, 0.19, 0.05."""
    rng, bits = np.random.default_rng(0), max(size - 1, 1).bit_length()
    src, dst = np.zeros((2, size * 8), np.int64)
    for _ in range(bits):
        draw = rng.random(size * 8)
        src, dst = 2 * src + (draw >= 0.76), 2 * dst + (((draw >= 0.57) & (draw < 0.76))
                                                        | (draw >= 0.95))
    return both_ways(src, dst, 2**bits)


def grid(size: int) -> EdgeStream:
    """A square grid."""
    side = max(int(size**0.5), 2)
    ids = np.arange(side * side).reshape(side, side)
    return both_ways(np.concatenate([ids[:, :-1].ravel(), ids[:-1].ravel()]),
                     np.concatenate([ids[:, 1:].ravel(), ids[1:].ravel()]), side * side)


def edges_of(name: str, size: int) -> EdgeStream:
    made = {"rmat": rmat, "grid": grid}.get(name)
    return made(size) if made is not None else EdgeStream.of_graph(opened(name))


def metis(stream: EdgeStream, parts: int) -> float | None:
    """METIS's replication factor with one hop, both directions; None without DGL."""
    try:
        import dgl
        import torch
    except ImportError:
        return None
    ends = [np.concatenate(column) for column in zip(*((c.src, c.dst) for c in stream.chunks()))]
    graph = dgl.to_bidirected(dgl.graph(tuple(map(torch.from_numpy, ends)),
                                        num_nodes=stream.num_nodes))
    with contextlib.redirect_stdout(io.StringIO()):  # DGL reports its stages there
        owner = dgl.metis_partition_assignment(graph, parts).numpy().astype(np.int16)
    near = Replicas.of_owners(owner, parts).with_neighbours(stream.chunks())
    return near.factor()


def compare(name: str, stream: EdgeStream, parts: list[int]) -> list[dict[str, Any]]:
    """A row for each number of parts."""
    rows = []
    for count in parts:
        factors, spring = {}, None
        for method in built_in():
            made = method.assign(stream, count)
            factors[method.name] = made.complete(stream).factor()
            spring = spring or made
        assert spring is not None
        printed = varied(volume=1.0, refine=0).assign(stream, count).complete(stream).factor()
        other = metis(stream, count)
        rows.append({
            "graph": f"{name} ({stream.num_nodes:,}, {stream.num_edges:,})", "parts": count,
            "factors": {**factors, "printed": printed, **({} if other is None else
                                                          {"metis": other})},
            "to mean": ratio(factors, np.mean), "to best": ratio(factors, min),
            "balance": float(spring.owned().max() * count / stream.num_nodes),
            "clusters": int(spring.figures["clusters"]),
            "merged": int(spring.figures["clusters_merged"])})
    return rows


def ratio(factors: dict[str, float], least: Any) -> float | None:
    """SPRING's RF - 1 in shares of the other streams'."""
    others = float(least([f - 1 for name, f in factors.items() if name != "spring"]))
    return (factors["spring"] - 1) / others if others > 0 else None


def varied(**values: float) -> Spring:
    method = Spring()
    method.settings = method.settings.model_copy(update=values)
    return method


def sweep(name: str, stream: EdgeStream, args: argparse.Namespace) -> str:
    volumes = args.volumes or [Spring.settings.volume]
    rows = [[name, str(count), str(passes), *(
        f"{varied(volume=v, refine=passes).assign(stream, count).complete(stream).factor():.3f}"
        for v in volumes)]
        for count in args.parts for passes in args.refine or [Spring.settings.refine]]
    return markdown(["graph", "parts", "refine", *(f"volume {v:g}" for v in volumes)], rows)


def numbers(kind: Any) -> Any:
    return lambda text: [kind(word) for word in text.split(",")]


def main() -> None:
    options = parser(__doc__, "scripts/bench/replication.py --graphs communities,debian")
    options.add_argument("--graphs", default="communities,rmat,grid,debian", type=numbers(str))
    options.add_argument("--parts", default=[4, 8, 16], type=numbers(int))
    options.add_argument("--nodes", default=50_000, type=int, help="of graphs that are made up")
    options.add_argument("--mixed", default=[0.02, 0.1], type=numbers(float),
                         help="shares of the edges of `communities` that go anywhere")
    options.add_argument("--volumes", type=numbers(float))
    options.add_argument("--refine", type=numbers(int))
    args = options.parse_args()
    if args.quick:
        args.nodes, args.parts, args.mixed = min(args.nodes, 5000), args.parts[:1], args.mixed[:1]
    before = machine()
    named = [(f"communities, {mixed:.0%} mixed", communities(args.nodes, mixed))
             for mixed in args.mixed if "communities" in args.graphs]
    named += [(name, edges_of(name, args.nodes)) for name in args.graphs if name != "communities"]
    if args.volumes or args.refine:
        rows, tables = [], [sweep(name, stream, args) for name, stream in named]
    else:
        rows = [row for name, stream in named for row in compare(name, stream, args.parts)]
        tables = [table(rows, ("graph", "parts"), COLUMNS)]
    finish(args, "Replication factors", tables, {"rows": rows}, before)


if __name__ == "__main__":
    main()
