"""AGG_r by operator: what a kernel can do for several relations at once, and which kernel does it.

R destination rows, E edges, S source rows, H heads, D width. A relation is given by its
:class:`dgl_heta.sampling.blocks.InEdges`, in the order of the rows. Operators have DGL's names: `u`
is the source of an edge, `v` its destination, `e` the edge itself.

Every operator takes lists, an entry for each relation, and returns a list. A kernel may so
merge the relations of a layer into one call (as Wu et al. do in "Accelerating Mini-batch HGNN
Training by Reducing CUDA Kernels", 2024), and return :class:`dgl_heta.nn.joined.Joined`, a list in
one tensor; :class:`BaseKernel` goes through them one by one. All are differentiable but `e_max`. A
kernel derives from :class:`BaseKernel` and overrides what it does better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dgl_heta.hooks.kernel_protocol import Kernel
from dgl_heta.nn import messages, segments
from dgl_heta.nn.attention_across import attend_across
from dgl_heta.nn.graph_attention import SLOPE, attend
from dgl_heta.nn.joined import elementwise
from dgl_heta.nn.precision import InFloat32, all_widened, is_mixed
from dgl_heta.nn.read_rows import chosen_rows, product
from dgl_heta.nn.row_sums import extreme, sums
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import Block, InEdges, Prepared, prepare_by
from dgl_heta.system.jit import COMPILES

Join = Callable[[Tensor, str], Tensor]
"""Rows (R, …) joined over the workers by `sum`, `max` or `min`; sums are differentiable."""

_NOWHERE = torch.iinfo(torch.int64).max


class BaseKernel(Kernel):
    """The base of other kernels: gather, then scatter, by PyTorch operators, on any device."""

    name = "base"

    def prepare(self, block: Block, device: torch.device) -> Prepared | None:
        """What is to be moved to a device with a block's edges, to take them as a whole there."""
        return None

    def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str
               ) -> Sequence[Tensor]:
        """Sum, mean, max or min of source rows: (S, D) to (R, D), 0 for a row without edges."""
        return [_reduce(csc, x, op) for csc, x in zip(edges, states)]

    def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Products of both ends, per head: (S, D) or (S, H, D), with (R, H, D), to (E, H)."""
        return [(v.index_select(0, csc.rows()) * _gathered(csc, u)).sum(2)
                for csc, u, v in zip(edges, sources, destinations)]

    def u_mm(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
             weights: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
        """Products of each edge's source row (S, D) with its relation's weight (D, H): (E, H)."""
        return [u.index_select(0, csc.indices.long()) @ weight
                for csc, u, weight in zip(edges, sources, unbound(weights))]

    def u_add_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums of both ends: (S, H) and (R, H) to (E, H)."""
        return [u.index_select(0, csc.indices.long()) + v
                for csc, u, v in zip(edges, sources, self.copy_v(edges, destinations))]

    def copy_v(self, edges: Sequence[InEdges], rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each edge gets its destination's values: (R, H) to (E, H)."""
        return [torch.repeat_interleave(v, csc.indptr.diff(), dim=0, output_size=len(csc.indices))
                for csc, v in zip(edges, rows)]

    def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        """Softmax over the edges of each row by its relation: (E, H) to (E, H)."""
        tops = self.copy_v(edges, self.e_max(edges, scores))
        weights = [torch.exp(e - top) for e, top in zip(scores, tops)]
        return [e / total for e, total in
                zip(weights, self.copy_v(edges, self.e_sum(edges, weights)))]

    def e_max(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        """Maxima over the edges of each row, no gradient: (E, H) to (R, H), -inf without edges."""
        return [_edge_max(csc, e.detach()) for csc, e in zip(edges, scores)]

    def e_sum(self, edges: Sequence[InEdges], values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over the edges of each row: (E, H) to (R, H), 0 for a row without edges."""
        return [_edge_sum(csc, e) for csc, e in zip(edges, values)]

    def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums of source rows times the weights of their edges, per head.

        (S, D) or (S, H, D), with (E, H), to (R, H, D), 0 for a row without edges.
        """
        return [_edge_sum(csc, _gathered(csc, u) * e.unsqueeze(2))
                for csc, u, e in zip(edges, sources, weights)]

    def u_attend(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                 vectors: Sequence[Tensor], destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums of source rows weighted as in GAT: by the softmax over each row's edges of
        LeakyReLU(u · vector + score of v).

        (S, D) or (S, H, D), vectors (H, D), scores (R, H), to (R, H, D), 0 without edges.
        """
        if sources[0].dim() == 3:
            of_sources = [(u * a).sum(2) for u, a in zip(sources, vectors)]
            scores = self.u_add_v(edges, of_sources, destinations)
        elif sum(len(csc.indices) for csc in edges) <= sum(map(len, sources)):
            scores = elementwise(torch.add, self.u_mm(edges, sources, [a.t() for a in vectors]),
                                 self.copy_v(edges, destinations))
        else:
            scores = self.u_add_v(edges, [u @ a.t() for u, a in zip(sources, vectors)],
                                  destinations)
        scores = elementwise(lambda e: F.leaky_relu(e, SLOPE), scores)
        return self.u_mul_e_sum(edges, sources, self.edge_softmax(edges, scores))

    def attend_across(self, edges: Sequence[InEdges], rows: Sequence[Tensor | slice],
                      sources: Sequence[Tensor], queries: Tensor, to_scores: Tensor,
                      to_sums: Tensor, biases: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """HGT's attention of one node type, over the edges of all relations: of each row the sum of
        exp(k_u · (q A) + q · a - M) (v_u M + m) and, beside it, that of exp(…), (R, H · D + H), and
        its maxima M (R, H), which have no gradient; 0 and -inf without edges. Shapes of what is
        given stand at :meth:`dgl_heta.hooks.kernel_protocol.Kernel.attend_across`.
        """
        apart = {id(x): x.unbind(1) if x.dim() == 4 else (x, x) for x in sources}
        keys, values = zip(*(apart[id(x)] for x in sources))
        own = self.gather([queries] * len(edges), rows)
        scores = self.u_dot_v(edges, keys, self.matmul(own, to_scores))
        if biases is not None:
            of_rows = self.matmul(own, biases[:, 0].unsqueeze(3))
            scores = elementwise(torch.add, scores, self.copy_v(
                edges, elementwise(lambda x: x.squeeze(2), of_rows)))

        def messages(weights: Sequence[Tensor]) -> Sequence[Tensor]:
            sums = self.matmul(self.u_mul_e_sum(edges, values, weights), to_sums)
            if biases is not None:
                totals = elementwise(lambda x: x.unsqueeze(2), self.e_sum(edges, weights))
                sums = elementwise(torch.add, sums,
                                   self.matmul(totals, biases[:, 1].unsqueeze(2)))
            return elementwise(lambda x: x.flatten(1), sums)

        return sums_across(self, edges, rows, scores, len(queries), messages)

    def gather(self, states: Sequence[Tensor], rows: Sequence[Tensor | slice]
               ) -> Sequence[Tensor]:
        """Rows of states (n, …), by their numbers (int64) or from one to another: (rows, …)."""
        # `x[numbers]` adds its gradients in any order on several threads: other digits each time
        return [x[chosen] if isinstance(chosen, slice) else x.index_select(0, chosen)
                for x, chosen in zip(states, rows)]

    def scatter_sum(self, values: Sequence[Tensor], rows: Sequence[Tensor | slice], like: Tensor
                    ) -> Tensor:
        """Zeros as `like` (n, …), to which values (rows_i, …) are added at those rows; in each
        list a row stands once."""
        out: Tensor = _ScatterSum.apply(list(rows), like.detach(), *values)
        return out

    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        """Products: (n, A) with (A, B) to (n, B), or per head (n, H, A) with (H, A, B)."""
        return [x @ weight if weight.dim() == 2 else torch.einsum("rha,hab->rhb", x, weight)
                for x, weight in zip(rows, unbound(weights))]

    def project(self, states: Sequence[Tensor], weights: Sequence[Tensor],
                biases: Sequence[Tensor | None] = ()) -> Sequence[Tensor]:
        """Products of states (n, A), of which several may be one tensor, with (A, B), plus biases
        (B,) where there are some: (n, B)."""
        return [x @ weight if bias is None else torch.addmm(bias, x, weight)
                for x, weight, bias in zip(states, weights, biases or [None] * len(states))]


class TorchKernel(BaseKernel):
    """The `torch` kernel: the reference, by PyTorch operators alone."""

    name = "torch"
    defers = False


class FusedKernel(BaseKernel):
    """The `fused` kernel: one compiled pass over the edges, on CPU; elsewhere, in half and in mixed
    precision, and without numba, as `torch`.

    It reads each source row once and writes no message per edge: nothing of size (E, H, D).
    """

    name = "fused"

    def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str
               ) -> Sequence[Tensor]:
        """As `torch`. Relations of the same source rows add their gradients to one array of
        that size, instead of each to an array of its own."""
        results: dict[int, Tensor] = {}
        for places in _by_identity(states):
            x, chosen = states[places[0]], [edges[i] for i in places]
            if not _compiled(x):
                rows: Sequence[Tensor] = super().reduce(chosen, [x] * len(chosen), op)
            elif op in ("sum", "mean"):
                rows = sums(chosen, x, op == "mean")
            else:
                rows = [extreme(*csc, x, op == "max") for csc in chosen]
            results.update(zip(places, rows))
        return [results[i] for i in range(len(states))]

    def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        return [messages.edge_dot(*csc, u, v) if _compiled(u, v)
                else super(FusedKernel, self).u_dot_v([csc], [u], [v])[0]
                for csc, u, v in zip(edges, sources, destinations)]

    def u_add_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        return [messages.edge_add(*csc, u, v) if _compiled(u, v) and u.dim() == 2
                else super(FusedKernel, self).u_add_v([csc], [u], [v])[0]
                for csc, u, v in zip(edges, sources, destinations)]

    def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        return [segments.segment_softmax(csc.indptr, e) if _compiled(e)
                else super(FusedKernel, self).edge_softmax([csc], [e])[0]
                for csc, e in zip(edges, scores)]

    def e_max(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        return [segments.segment_max(csc.indptr, e) if _compiled(e)
                else _edge_max(csc, e.detach()) for csc, e in zip(edges, scores)]

    def e_sum(self, edges: Sequence[InEdges], values: Sequence[Tensor]) -> Sequence[Tensor]:
        return [segments.segment_total(csc.indptr, e) if _compiled(e) else _edge_sum(csc, e)
                for csc, e in zip(edges, values)]

    def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return [messages.weighted_sum(*csc, u, e) if _compiled(u, e)
                else super(FusedKernel, self).u_mul_e_sum([csc], [u], [e])[0]
                for csc, u, e in zip(edges, sources, weights)]

    def u_attend(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                 vectors: Sequence[Tensor], destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        return [attend(*csc, u, a, b) if _compiled(u, a, b)
                else super(FusedKernel, self).u_attend([csc], [u], [a], [b])[0]
                for csc, u, a, b in zip(edges, sources, vectors, destinations)]

    def attend_across(self, edges: Sequence[InEdges], rows: Sequence[Tensor | slice],
                      sources: Sequence[Tensor], queries: Tensor, to_scores: Tensor,
                      to_sums: Tensor, biases: Tensor | None = None) -> tuple[Tensor, Tensor]:
        compiled = _compiled(queries, to_scores, to_sums, *sources) and (
            biases is None or sources[0].dim() == 2)
        way = attend_across if compiled else super().attend_across
        return way(edges, rows, sources, queries, to_scores, to_sums, biases)

    def gather(self, states: Sequence[Tensor], rows: Sequence[Tensor | slice]
               ) -> Sequence[Tensor]:
        """As `torch`; gradients are added to the array that all operators on a tensor share. Not
        those of rows that wait, of which some would become all, nor of a script's views."""
        return [chosen_rows(x, chosen) if type(x) in (Tensor, torch.nn.Parameter)
                and x._base is None and _compiled(x)
                else super(FusedKernel, self).gather([x], [chosen])[0]
                for x, chosen in zip(states, rows)]

    def project(self, states: Sequence[Tensor], weights: Sequence[Tensor],
                biases: Sequence[Tensor | None] = ()) -> Sequence[Tensor]:
        """As `torch`; gradients of states as those of :meth:`gather`."""
        mixed = is_mixed() or torch.is_autocast_cpu_enabled()
        return [product(x, weight, bias) if _compiled(x, weight) and not mixed else
                super(FusedKernel, self).project([x], [weight], [bias])[0]
                for x, weight, bias in zip(states, weights, biases or [None] * len(states))]


def unbound(weights: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    """The weights of each relation; taken apart at once, so that their gradients are put together
    at once."""
    return weights.unbind() if isinstance(weights, Tensor) else weights


def sums_across(kernel: Kernel, edges: Sequence[InEdges], rows: Sequence[Tensor | slice],
                scores: Sequence[Tensor], number: int,
                messages: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Sums and maxima as of :meth:`BaseKernel.attend_across`, of so many rows, from scores (E, H).

    `messages` gives for weights (E, H) of each relation their weighted sums of messages (R_r, W).
    """
    with torch.no_grad():
        top = scores[0].new_full((number, scores[0].shape[1]), float("-inf"))
        for at, most in zip(rows, kernel.e_max(edges, elementwise(Tensor.detach, scores))):
            top[at] = torch.maximum(top[at], most)
        # Where all edges are masked by -inf, it would be -inf - -inf: others may have more of them.
        finite = top.nan_to_num(torch.nan, torch.inf, 0)
    tops = kernel.copy_v(edges, kernel.gather([finite] * len(edges), rows))
    weights = elementwise(lambda e, most: torch.exp(e - most), scores, tops)
    sums = elementwise(lambda x, total: torch.cat([x, total], 1), all_widened(messages(weights)),
                       kernel.e_sum(edges, weights))
    like = top.new_empty((1, 1)).expand(number, sums[0].shape[1])
    return kernel.scatter_sum(sums, rows, like), top


_in_use: Kernel = FusedKernel()


def use_kernel(kernel: Kernel) -> Kernel:
    """Aggregate with this kernel from now on, in this process; return the one before it."""
    global _in_use
    before, _in_use = _in_use, kernel
    prepare_by(getattr(kernel, "prepare", BaseKernel().prepare))  # of plugins some have none
    return before


def kernel_in_use() -> Kernel:
    """The kernel that aggregates in this process; in mixed precision it is given float32."""
    if not is_mixed():
        return _in_use
    plain = ("project", "matmul") if type(_in_use).matmul is BaseKernel.matmul else ("project",)
    return cast(Kernel, InFloat32(_in_use, plain))


def _compiled(*tensors: Tensor) -> bool:
    """Return whether the compiled kernels take these tensors: single or double precision, on CPU,
    where kernels can be compiled."""
    dtype = tensors[0].dtype
    return COMPILES and dtype in (torch.float32, torch.float64) and all(
        tensor.device.type == "cpu" and tensor.dtype == dtype for tensor in tensors)


def _by_identity(states: Sequence[Tensor]) -> list[list[int]]:
    """The places of each tensor among `states`."""
    places: dict[int, list[int]] = {}
    for i, x in enumerate(states):
        places.setdefault(id(x), []).append(i)
    return list(places.values())


def _gathered(csc: InEdges, source: Tensor) -> Tensor:
    """The source row of each edge, per head: (E, 1 or H, D)."""
    rows = source.index_select(0, csc.indices.long())
    return rows.unsqueeze(1) if rows.dim() == 2 else rows


def _reduce(csc: InEdges, states: Tensor, op: str) -> Tensor:
    rows, messages = csc.rows(), states.index_select(0, csc.indices.long())
    out = states.new_zeros((len(csc.indptr) - 1, states.shape[1]))
    if op in ("sum", "mean"):
        out = out.index_add(0, rows, messages)
        return out / csc.indptr.diff().clamp(min=1).unsqueeze(1) if op == "mean" else out
    return first_extreme(rows, messages, out, op)


def first_extreme(rows: Tensor, messages: Tensor, zeros: Tensor, op: str,
                  order: Tensor | None = None, join: Join = lambda values, op: values) -> Tensor:
    """Maxima or minima of messages (E, D) by the row of each, (E,) int64: as `zeros` (R, D), which
    stay where a row has no message; NaN stays NaN.

    Of several messages with the extreme the first has its gradient, as in the compiled kernels and
    in `torch.max` over a dimension; `amax` and `amin` of PyTorch divide it among them.

    Parameters
    ----------
    order : of the messages of a row, (E,) int64, where other workers have some; default: as they
        stand.
    join : joins rows over the workers that have messages.
    """
    order = torch.arange(len(rows), device=rows.device) if order is None else order
    with torch.no_grad():
        index = rows.unsqueeze(1).expand_as(messages)
        own = torch.full_like(zeros, EXTREMES[op]).scatter_reduce(0, index, messages, "a" + op)
        attained = messages == join(own, op)[rows]
        places = torch.where(attained, order.unsqueeze(1), _NOWHERE)
        first = places.new_full(zeros.shape, _NOWHERE).scatter_reduce(0, index, places, "amin")
        # Joining numbers may lose NaN (gloo); the places tell of it.
        first = join(torch.where(own.isnan(), -1, first), "min")
        chosen = attained & (places == first[rows])
    messages = torch.where(chosen, messages, 0)  # no product: infinity times 0 is no number
    return torch.where(first < 0, torch.nan, join(zeros.index_add(0, rows, messages), "sum"))


def _edge_max(csc: InEdges, scores: Tensor) -> Tensor:
    out = scores.new_full((len(csc.indptr) - 1, *scores.shape[1:]), float("-inf"))
    return out.scatter_reduce(0, csc.rows().unsqueeze(1).expand_as(scores), scores, "amax")


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: list[Tensor | slice], like: Tensor, *values: Tensor) -> Tensor:
        ctx.rows = rows
        out = like.new_zeros(like.shape)
        for chosen, value in zip(rows, values):
            if isinstance(chosen, slice):
                out[chosen] += value
            else:
                out.index_add_(0, chosen, value)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return None, None, *(grad[chosen] for chosen in ctx.rows)


def _edge_sum(csc: InEdges, values: Tensor) -> Tensor:
    out = values.new_zeros((len(csc.indptr) - 1, *values.shape[1:]))
    return out.index_add(0, csc.rows(), values)
