"""How even and how apart the pieces of one relation are, that is cut by different cutters.

Of each cut: the largest piece in even pieces of edges; the same after the in-edges of hubs are cut,
too, and how many nodes these are; in how many pieces a source is read, on average, of those that
have an edge (what pieces must be sent, or hold, of rows of sources); and destinations of the
largest piece, in even ones.

    python scripts/bench/cuts.py --graphs communities ranked hub debian --parts 4 8

`--graphs` are relations that are made up, with in-degrees by a power law: communities (nine of ten
edges inside one of them), ranked (the same, ids of destinations in the order of their in-degrees),
random (no communities), hub (communities, and one node with 40 % of all edges); and data sets, of
which the relation with most edges is cut.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from common import finish, machine, markdown, opened, parser
from dgl_heta_catgnn import SpringCutter

from dgl_heta import Cutter, EdgeArrays, GraphSource, Relation
from dgl_heta.partition.cutters import EvenBytes, EvenEdges, Ranges, in_degrees
from dgl_heta.planning.hubs import share_hubs

MADE = Relation("user", "reads", "item")


def made(size: int, edges: int, inside: float, hub: float, ranked: bool) -> GraphSource:
    """As many users as items, in communities of 200; a share of edges stays inside one."""
    rng = np.random.default_rng(0)
    weight = np.minimum(rng.pareto(1.2, size) + 0.1, size / 50)
    ends = np.cumsum(weight)
    dst = np.searchsorted(ends, rng.random(edges) * ends[-1])
    communities = max(size // 200, 1)
    own = np.sort(rng.integers(0, communities, size))  # of items, and of users
    first, last = np.searchsorted(own, own[dst]), np.searchsorted(own, own[dst], "right")
    src = np.where(rng.random(edges) < inside,
                   first + (rng.random(edges) * (last - first)).astype(np.int64),
                   rng.integers(0, size, edges))
    dst[:int(edges * hub)] = size // 3
    order = rng.permutation(edges)
    users, items = rng.permutation(size), rng.permutation(size)  # ids say nothing of communities
    if ranked:
        items[np.argsort(np.bincount(dst, minlength=size), kind="stable")] = np.arange(size)
    return GraphSource("made", {"user": size, "item": size},
                       {MADE: EdgeArrays(users[src[order]], items[dst[order]])})


def relation_of(name: str, size: int) -> tuple[GraphSource, Relation]:
    shapes = {"communities": (0.9, 0.0, False), "ranked": (0.9, 0.0, True),
              "random": (0.0, 0.0, False), "hub": (0.9, 0.4, False)}
    if name in shapes:
        return made(size, 20 * size, *shapes[name]), MADE
    source = opened(name)
    return source, max(source.edges, key=lambda r: source.edges[r].num_edges)


def cutters() -> Mapping[str, Cutter]:
    """The built-in ones, and SPRING without and with refining."""
    paper = SpringCutter()
    paper.settings = paper.settings.model_copy(update={"refine": 0})
    return {each.name: each for each in (Ranges(), EvenEdges(), EvenBytes())} | {
        "spring, refine 0": paper, "spring": SpringCutter()}


def row(cutter: Cutter, source: GraphSource, relation: Relation, parts: int) -> list[str]:
    count = source.node_counts[relation.dst]
    bounds = [count * i // parts for i in range(parts + 1)]
    sizes = np.diff(bounds).tolist()
    started = time.process_time()
    chosen = cutter.cut(source, relation, sizes)
    seconds = time.process_time() - started
    planned = chosen is None  # ranges stay as planned, also with hubs
    if chosen is None:
        chosen = np.repeat(np.arange(parts), sizes)
    degrees = in_degrees(source, relation)
    even = degrees.sum() / parts
    before = np.bincount(chosen, degrees, parts)
    src, dst = edges_of(source, relation)
    piece = chosen[dst]
    hubs = {} if planned else share_hubs(chosen, degrees, sizes, 1.0)
    starts = np.concatenate([[0], np.cumsum(degrees)])
    for node, pieces in hubs.items():
        for part, low, high in pieces:
            piece[starts[node] + low:starts[node] + high] = part
    after = np.bincount(piece, minlength=parts)
    read = len(np.unique(src * parts + piece))
    rows = np.bincount(chosen, minlength=parts).max() * parts / count
    return [f"{before.max() / even:.2f}", f"{after.max() / even:.2f}",
            str(len(hubs)), f"{read / len(np.unique(src)):.2f}", f"{rows:.2f}", f"{seconds:.2f}"]


def edges_of(source: GraphSource, relation: Relation) -> tuple[np.ndarray, np.ndarray]:
    """All edges, by destination, as the store has them."""
    chunks = list(source.edges[relation].chunks(2**20))
    src, dst = (np.concatenate(ends).astype(np.int64) for ends in zip(*chunks))
    order = np.argsort(dst, kind="stable")
    return src[order], dst[order]


def compare(name: str, size: int, parts: Sequence[int]) -> str:
    source, relation = relation_of(name, size)
    degrees = in_degrees(source, relation)
    return (f"{name}: {relation}, {degrees.sum():,} edges, {len(degrees):,} destinations, largest "
            f"in-degree {degrees.max():,}\n\n" + markdown(
                ["pieces", "cut", "edges of the largest", "hubs cut", "hubs", "pieces per source",
                 "destinations", "seconds"],
                [[str(count), label, *row(cutter, source, relation, count)]
                 for count in parts for label, cutter in cutters().items()]))


def main() -> None:
    options = parser(__doc__, "scripts/bench/cuts.py --graphs debian")
    options.add_argument("--graphs", nargs="+", default=["communities", "ranked", "random", "hub",
                                                         "debian"])
    options.add_argument("--parts", nargs="+", default=[4, 8], type=int)
    options.add_argument("--nodes", default=50_000, type=int, help="of either type, made up")
    args = options.parse_args()
    before = machine()
    shown = [compare(name, 2000 if args.quick else args.nodes, args.parts) for name in args.graphs]
    finish(args, "Pieces of a relation", shown, {"tables": shown}, before)


if __name__ == "__main__":
    main()
