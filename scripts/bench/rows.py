"""Row kernels against NumPy, PyTorch and torch.optim.SparseAdam, one thread, interleaved.

    python scripts/bench/rows.py [--rows 56000] [--width 64]

Prints the median milliseconds of each over the rounds, and the ratio to ours.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import against_first, in_turns

from dgl_heta.features.row_kernels import gather_rows
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable


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
    gathers = in_turns({
        "dgl-heta": lambda: gather_rows(array, ids),
        "numpy array[ids]": lambda: array[ids],
        "torch tensor[ids]": lambda: tensor[index],
        "torch index_select": lambda: tensor.index_select(0, index)}, chosen.rounds)
    grads = torch.from_numpy(rng.standard_normal((chosen.rows, chosen.width), dtype=np.float32))
    table, adam = RowTable(tensor.clone()), AdamSettings()
    weight = torch.nn.Parameter(tensor.clone())
    optimizer = torch.optim.SparseAdam([weight], lr=0.01)
    weight.grad = torch.sparse_coo_tensor(index.unsqueeze(0), grads, weight.shape).coalesce()
    order = ids.argsort()
    updates = in_turns({
        "dgl-heta": lambda: table.update(ids[order], grads, 1.0, adam),
        "torch.optim.SparseAdam": optimizer.step}, chosen.rounds)
    print(against_first("gather", gathers), against_first("sparse Adam", updates), sep="\n\n")


if __name__ == "__main__":
    main()
