"""A DistDGL script in standalone mode that makes things again, and changes them: what it found is
written as JSON.

    dist_again.py PART_CONFIG OUT CASE
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import torch

ROWS = torch.arange(4)


def ones(shape: Any, dtype: Any) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def embedding_again(g: Any) -> list[Any]:
    """Rows before and after two trainings, each by a table and an optimizer of its own."""
    def trained() -> list[Any]:
        table = dgl.distributed.DistEmbedding(
            g.num_nodes("author"), 2, "table", init_func=ones,
            part_policy=g.get_node_partition_policy("author"))
        optimizer = dgl.distributed.optim.SparseAdam([table], lr=0.1)
        before = table.weight[ROWS].tolist()
        for _ in range(2):
            table(ROWS).sum().backward()
            optimizer.step()
        return [before, table.weight[ROWS].tolist()]
    return [trained(), trained()]


CASES = {"embedding": embedding_again}


def main() -> None:
    config, out, case = sys.argv[1:]
    dgl.distributed.initialize("")
    with tempfile.TemporaryDirectory() as directory:
        torch.distributed.init_process_group("gloo", f"file://{directory}/store", rank=0,
                                             world_size=1)
        found = CASES[case](dgl.distributed.DistGraph("academic", part_config=config))
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
