"""Row kernels against NumPy, PyTorch and torch.optim.SparseAdam, one thread, interleaved.

    python scripts/bench/rows.py [--rows 56000] [--width 64]

Prints the median milliseconds of each over the rounds, and the ratio to ours.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.features.sparse_adam import AdamSettings, RowTable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=56_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    total = chosen.rows * 11 // 10
    array = rng.standard_normal((total, chosen.width), dtype=np.float32)
    ids = rng.permutation(total)[:chosen.rows].astype(np.int64)
    tensor, index = torch.from_numpy(array), torch.from_numpy(ids)
    compare("gather", chosen.rounds, {
        "dgl-heta": lambda: gather_rows(array, ids),
        "numpy array[ids]": lambda: array[ids],
        "torch tensor[ids]": lambda: tensor[index],
        "torch index_select": lambda: tensor.index_select(0, index)})
    grads = torch.from_numpy(rng.standard_normal((chosen.rows, chosen.width), dtype=np.float32))
    table, adam = RowTable(tensor.clone()), AdamSettings()
    weight = torch.nn.Parameter(tensor.clone())
    optimizer = torch.optim.SparseAdam([weight], lr=0.01)
    weight.grad = torch.sparse_coo_tensor(index.unsqueeze(0), grads, weight.shape).coalesce()
    order = ids.argsort()
    compare("sparse Adam", chosen.rounds, {
        "dgl-heta": lambda: table.update(ids[order], grads, 1.0, adam),
        "torch.optim.SparseAdam": optimizer.step})


def compare(title: str, rounds: int, calls: dict[str, Callable[[], object]]) -> None:
    """Time the calls in turn and print a Markdown table."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - start) * 1e3)
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
    ours = next(iter(medians.values()))
    print(f"| {title} | ms | ÷ ours |\n|---|---:|---:|")
    for name, ms in medians.items():
        print(f"| {name} | {ms:.2f} | {ms / ours:.1f} |")
    print()


if __name__ == "__main__":
    main()
