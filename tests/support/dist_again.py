"""A DistDGL script in standalone mode that makes things again, and changes them: what it found is
written as JSON.

    dist_again.py PART_CONFIG OUT CASE
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import torch
from dgl.dataloading import DistNodeDataLoader, NeighborSampler

from dgl_heta.errors import HetaError

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


class Derived(NeighborSampler):
    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        return super().sample_blocks(g, seed_nodes, exclude_eids)


def loaders_changed(g: Any) -> dict[str, str]:
    """What is said where something of a loader or its sampler is set after it was made."""
    found = {}

    def attempt(name: str, change: Callable[[Any, Any], object], kind: Any = NeighborSampler,
                fanouts: Any = (2,), inside: bool = False) -> None:
        sampler = kind([*fanouts])
        loader = DistNodeDataLoader(g, {"paper": torch.arange(8)}, sampler, batch_size=4)
        batches = iter(loader)
        next(batches)
        try:
            change(loader, sampler)
            next(batches if inside else iter(loader))
            found[name] = ""
        except HetaError as error:
            found[name] = f"{type(error).__name__}: {error}"

    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return NeighborSampler([2]).sample_blocks(*args)

    def set_fanouts(loader: Any, sampler: Any) -> None:
        sampler.fanouts[:] = [-1]

    attempt("nothing", lambda loader, sampler: None)
    attempt("fanouts", set_fanouts)
    attempt("fanouts inside an epoch", set_fanouts, inside=True)
    attempt("fanouts of a derived class", set_fanouts, Derived)
    attempt("fanouts of none", lambda _, sampler: setattr(sampler, "fanouts", [2]), fanouts=())
    attempt("prob", lambda _, sampler: setattr(sampler, "prob", "train_mask"))
    attempt("sample_blocks", lambda _, sampler: setattr(sampler, "sample_blocks", counted))
    attempt("derived", lambda _, sampler: setattr(sampler, "sample_blocks", counted), Derived)
    assert len(calls) == 1
    for name, value in (("batch_size", 2), ("shuffle", True), ("drop_last", True)):
        attempt(name, lambda loader, _, name=name, value=value: setattr(loader, name, value))
    return found


CASES: dict[str, Callable[[Any], Any]] = {
    "embedding": embedding_again, "loaders": loaders_changed}


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
