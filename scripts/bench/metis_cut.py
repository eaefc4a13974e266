"""How many edges METIS cuts on synthetic graphs, by how strong their communities are.

    python scripts/bench/metis_cut.py        # mag and Freebase, 2 parts, 2 minutes

The graph is taken as homogeneous, as DistDGL gives it to METIS. Random parts cut 1 - 1 / parts.
"""

from __future__ import annotations

import dgl
import numpy as np
import torch
from common import finish, machine, markdown, parser, progress

from dgl_heta.graph.datasets.synthetic import generate


def cut(shape: str, scale: float, cohesion: float, parts: int) -> float:
    """The share of edges whose ends are in two parts."""
    graph = generate(shape, scale, 0, cohesion)
    first = dict(zip(graph.node_counts, np.cumsum([0, *graph.node_counts.values()])))
    src, dst = (torch.from_numpy(np.concatenate([
        getattr(edges, end).astype(np.int64) + first[getattr(relation, end)]
        for relation, edges in graph.edges.items()])) for end in ("src", "dst"))
    whole = dgl.graph((src, dst), num_nodes=sum(graph.node_counts.values()))
    of = dgl.metis_partition_assignment(dgl.to_bidirected(whole), parts)
    return float((of[src] != of[dst]).float().mean())


def main() -> None:
    options = parser(__doc__, "scripts/bench/metis_cut.py --parts 4")
    options.add_argument("--parts", type=int, default=2)
    options.add_argument("--cohesion", type=float, nargs="+", default=[0.0, 0.5, 0.8, 0.95])
    args = options.parse_args()
    before, rows, runs = machine(), [], []
    for shape, scale in (("mag", 0.05), ("freebase", 0.02)):
        scale *= 0.1 if args.quick else 1
        shares = []
        for cohesion in args.cohesion:
            shares.append(cut(shape, scale, cohesion, args.parts))
            progress(f"{shape} × {scale:g}, cohesion {cohesion:g}: {shares[-1]:.1%}")
            runs.append({"shape": shape, "scale": scale, "cohesion": cohesion, "cut": shares[-1]})
        rows.append([f"{shape} × {scale:g}", *(f"{share:.1%}" for share in shares)])
    finish(args, f"Edges that METIS cuts, {args.parts} parts",
           [markdown(["graph", *(f"cohesion {c:g}" for c in args.cohesion)], rows)],
           {"runs": runs}, before)


if __name__ == "__main__":
    main()
