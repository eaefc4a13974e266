"""A guest: one call of each operator for all relations, whose edges and rows are put together.

Each call adds a line to $USED/RANK.txt: the operator, the number of relations.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dgl_heta import hookimpl


@hookimpl
def dgl_heta_kernels() -> list[Any]:
    import torch
    from torch import Tensor

    from dgl_heta.nn import BaseKernel
    from dgl_heta.sampling.blocks import InEdges

    def merged(edges: Sequence[InEdges], sources: Sequence[int]) -> InEdges:
        """All relations as one, over the rows of all, one relation's after the other's."""
        first = [sum(sources[:i]) for i in range(len(edges))]
        degrees = [torch.zeros(1, dtype=torch.int64), *(e.indptr.diff() for e in edges)]
        return InEdges(torch.cat(degrees).cumsum(0),
                       torch.cat([e.indices.long() + low for e, low in zip(edges, first)]))

    def rows(edges: Sequence[InEdges]) -> list[int]:
        return [len(e.indptr) - 1 for e in edges]

    def alike(tensors: Sequence[Tensor]) -> bool:
        return len({(t.shape[1:], t.dtype) for t in tensors}) == 1

    def count(operator: str, edges: Sequence[InEdges]) -> None:
        file = Path(os.environ["USED"]) / f"{os.environ.get('RANK', '0')}.txt"
        with file.open("a") as out:
            out.write(f"{operator} {len(edges)}\n")

    class Merged(BaseKernel):
        name = "together"

        def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str
                   ) -> list[Tensor]:
            count("reduce", edges)
            if not alike(states):
                return super().reduce(edges, states, op)
            one = merged(edges, [len(x) for x in states])
            (out,) = super().reduce([one], [torch.cat(list(states))], op)
            return list(out.split(rows(edges)))

        def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> list[Tensor]:
            count("edge_softmax", edges)
            one = merged(edges, [0] * len(edges))
            (out,) = super().edge_softmax([one], [torch.cat(list(scores))])
            return list(out.split([len(e) for e in scores]))

        def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    destinations: Sequence[Tensor]) -> list[Tensor]:
            count("u_dot_v", edges)
            one = merged(edges, [len(u) for u in sources])
            (out,) = super().u_dot_v([one], [torch.cat(list(sources))],
                                     [torch.cat(list(destinations))])
            return list(out.split([len(e.indices) for e in edges]))

        def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                        weights: Sequence[Tensor]) -> list[Tensor]:
            count("u_mul_e_sum", edges)
            if not alike(sources):
                return super().u_mul_e_sum(edges, sources, weights)
            one = merged(edges, [len(u) for u in sources])
            (out,) = super().u_mul_e_sum([one], [torch.cat(list(sources))],
                                         [torch.cat(list(weights))])
            return list(out.split(rows(edges)))

    return [Merged()]
