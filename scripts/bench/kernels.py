"""Kernels against NumPy's and PyTorch's, one thread, forward and backward, interleaved.

    python scripts/bench/kernels.py [--rows 20000] [--degree 20] [--width 64] [--heads 4]
    python scripts/bench/kernels.py --features 128 [--sources 200000]
    python scripts/bench/kernels.py --gather [--rows 56000]

Attention first, beside the kernel `torch`. With `--features`, keys and values are products of
projected feature rows of that width: computed for all source rows, or taken of queries and of sums
(dgl_heta/nn/attended.py). With `--gather`, rows of a table and its sparse optimizer. Prints the
median milliseconds of each over the rounds, and the ratio to ours. Results of attention must agree
first, gradients included.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from common import against_first, in_turns
from torch import Tensor, nn

from dgl_heta.features.deferred import lazy_rows
from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable
from dgl_heta.nn import FusedKernel, TorchKernel
from dgl_heta.nn.attended import Reads, edge_dots, weighted_sums
from dgl_heta.nn.kernels import BaseKernel
from dgl_heta.nn.segments import segment_softmax
from dgl_heta.planning.compute import attended_first
from dgl_heta.sampling.blocks import InEdges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gather", action="store_true", help="row kernels")
    parser.add_argument("--rows", type=int, help="default: 20,000, with --gather 56,000")
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--features", type=int, help="width of feature rows that wait")
    parser.add_argument("--sources", type=int, help="source rows (default: twice the rows)")
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    chosen.rows = chosen.rows or (56_000 if chosen.gather else 20_000)
    if chosen.gather:
        of_rows(chosen)
        return
    rows, edges, heads, width = (chosen.rows, chosen.rows * chosen.degree, chosen.heads,
                                 chosen.width)
    sources = chosen.sources or 2 * rows
    indptr = torch.arange(0, edges + 1, chosen.degree)
    indices = torch.from_numpy(
        np.random.default_rng(0).integers(sources, size=edges, dtype=np.int32))
    block = InEdges(indptr, indices)
    if chosen.features:
        of_features(chosen, block, sources)
        return
    ours, theirs = (attention(kernel, block) for kernel in (FusedKernel(), TorchKernel()))
    queries, states = torch.randn(rows, heads, width), torch.randn(sources, width)
    queries /= math.sqrt(width)
    per_edge = torch.rand(edges, heads)
    for name, inputs in zip(ours, ((queries, states), (per_edge,), (per_edge, states),
                                   (queries, states))):
        report(name, chosen.rounds, ours[name], theirs[name], inputs)


def of_rows(chosen: argparse.Namespace) -> None:
    """Rows gathered, and a step of Adam on some rows."""
    rng = np.random.default_rng(0)
    total = chosen.rows * 11 // 10
    array = rng.standard_normal((total, chosen.width), dtype=np.float32)
    ids = rng.permutation(total)[:chosen.rows].astype(np.int64)
    tensor, index = torch.from_numpy(array), torch.from_numpy(ids)
    gathers = in_turns({
        "dgl-heta": lambda: gather_rows(array, ids),
        "numpy array[ids]": lambda: array[ids],
        "torch tensor[ids]": lambda: tensor[index],
        "torch index_select": lambda: tensor.index_select(0, index)}, chosen.rounds)
    grads = torch.from_numpy(rng.standard_normal((chosen.rows, chosen.width), dtype=np.float32))
    table, adam = RowTable(tensor.clone()), AdamSettings()
    weight = nn.Parameter(tensor.clone())
    optimizer = torch.optim.SparseAdam([weight], lr=0.01)
    weight.grad = torch.sparse_coo_tensor(index.unsqueeze(0), grads, weight.shape).coalesce()
    order = ids.argsort()
    updates = in_turns({
        "dgl-heta": lambda: table.update(ids[order], grads, 1.0, adam),
        "torch.optim.SparseAdam": optimizer.step}, chosen.rounds)
    print(against_first("gather", gathers), against_first("sparse Adam", updates), sep="\n\n")


def of_features(chosen: argparse.Namespace, edges: InEdges, sources: int) -> None:
    """Attention over rows that wait, with products of destinations or of all source rows."""
    columns, shape = chosen.width, (chosen.heads, chosen.width // chosen.heads)
    array = np.random.default_rng(0).standard_normal((sources, chosen.features), np.float32)
    ids = np.arange(sources)
    project = nn.Linear(chosen.features, columns)
    keys, values = nn.Linear(columns, columns), nn.Linear(columns, columns)
    queries = torch.randn(chosen.rows, *shape, requires_grad=True)
    inputs = [queries, *project.parameters(), keys.weight, *values.parameters()]

    def step(reads: Reads) -> tuple[Tensor, ...]:
        rows = lazy_rows(array, ids)
        assert rows is not None
        states = project(rows)
        key, value = keys(states).view(-1, *shape), values(states).view(-1, *shape)
        weights = segment_softmax(edges.indptr, edge_dots(edges, key, queries, reads))
        out = weighted_sums(edges, value, weights, reads)
        return out.detach(), *torch.autograd.grad((out ** 2).sum(), inputs)

    few, many = Reads(0, 0, 0), Reads(1, 1 << 60, 1 << 60)  # decides which way it goes
    for one, other in zip(step(few), step(many)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    medians = in_turns({"of destinations": lambda: step(few),
                        "of source rows": lambda: step(many)}, chosen.rounds)
    reads = Reads(1, len(edges.indices), chosen.rows)
    choice = attended_first(sources, *reads, chosen.features, columns, *shape)
    print(against_first("products of keys and values", medians))
    print("chosen:", "of destinations" if choice else "of source rows")


def attention(kernel: BaseKernel, edges: InEdges) -> dict[str, Callable[..., Tensor]]:
    """A kernel's operators over one block, and all three."""
    def scores(queries: Tensor, states: Tensor) -> Tensor:
        return kernel.u_dot_v([edges], [states], [queries])[0]

    def softmax(values: Tensor) -> Tensor:
        return kernel.edge_softmax([edges], [values])[0]

    def attend(weights: Tensor, states: Tensor) -> Tensor:
        return kernel.u_mul_e_sum([edges], [states], [weights])[0]

    return {"u_dot_v": scores, "edge_softmax": softmax, "u_mul_e_sum": attend,
            "all three": lambda q, x: attend(softmax(scores(q, x)), x)}


def report(title: str, rounds: int, ours: Callable[..., Tensor], theirs: Callable[..., Tensor],
           inputs: tuple[Tensor, ...]) -> None:
    """Check that both give the same, gradients included, and time them in turn."""
    inputs = tuple(tensor.clone().requires_grad_() for tensor in inputs)
    grad = torch.randn_like(ours(*inputs))

    def step(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        out = call(*inputs)
        return out.detach(), *torch.autograd.grad(out, inputs, grad)

    torch.testing.assert_close(step(ours), step(theirs), rtol=1e-3, atol=1e-3)
    medians = in_turns({"dgl-heta": lambda: step(ours),
                        "torch operators": lambda: step(theirs)}, rounds)
    print(against_first(title, medians), end="\n\n")


if __name__ == "__main__":
    main()
