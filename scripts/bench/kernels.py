"""Row kernels against NumPy's and PyTorch's, and products of rows that wait, on one thread.

    python scripts/bench/kernels.py [--rows 56000] [--width 64]
    python scripts/bench/kernels.py --features 128 [--rows 56000] [--sources 200000] [--heads 4]

Rows of a table that are gathered, and its sparse optimizer. With `--features`, attention whose keys
and values are products of projected feature rows of that width: computed for all source rows, or
taken of queries and of sums (dgl_heta/nn/attended.py); the results of both ways must agree first,
gradients included. Prints the median milliseconds of each over rounds in turns, and the ratio to
the first.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import against_first, in_turns
from torch import Tensor, nn

from dgl_heta.features.deferred import lazy_rows
from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable
from dgl_heta.nn.attended import Reads, edge_dots, weighted_sums
from dgl_heta.nn.segments import segment_softmax
from dgl_heta.planning.compute import attended_first
from dgl_heta.sampling.blocks import InEdges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=56_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--features", type=int, help="width of feature rows that wait")
    parser.add_argument("--sources", type=int, help="source rows (default: twice the rows)")
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (of_features if chosen.features else of_rows)(chosen)


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


def of_features(chosen: argparse.Namespace) -> None:
    """Attention over rows that wait, with products of destinations or of all source rows."""
    columns, shape = chosen.width, (chosen.heads, chosen.width // chosen.heads)
    sources, count = chosen.sources or 2 * chosen.rows, chosen.rows * chosen.degree
    rng = np.random.default_rng(0)
    edges = InEdges(torch.arange(0, count + 1, chosen.degree),
                    torch.from_numpy(rng.integers(sources, size=count, dtype=np.int32)))
    array = rng.standard_normal((sources, chosen.features), np.float32)
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


if __name__ == "__main__":
    main()
