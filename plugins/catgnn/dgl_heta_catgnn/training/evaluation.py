"""Accuracy of the averaged model: on the whole graph, part by part, or on parts as they are."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgl_heta.tools import Comm, reserve
from dgl_heta_catgnn.training.local import TEST, TRAIN, VAL, load_part, whole_lists
from dgl_heta_catgnn.training.parts import TrainingParts

SPLITS = {"train": TRAIN, "val": VAL, "test": TEST}


def evaluate(parts: TrainingParts, model: Any, world: Comm, *, full: bool = True,
             whole: bool = True) -> dict[str, float]:
    """Shares of right predictions, by split that has nodes; all workers call it alike.

    With `whole` all nodes are computed layer by layer, each part's own ones from their full
    neighbour lists and the states of the layer below, which are in files that the workers of this
    machine share. It is what one process computes on the whole graph, and takes a part's memory.
    Otherwise each part's nodes are computed from what the part has, with `full` as in training
    (CATGNN, §5.5).
    """
    dtype = next(model.parameters()).dtype
    loops, own = getattr(model, "loops", False), range(world.rank, len(parts.parts), world.size)
    counts = torch.zeros(6, dtype=torch.float64)
    with torch.no_grad():
        if whole:
            counts += _whole(parts, model, world, own, loops, dtype)
        else:
            for part in own:
                local = load_part(parts, part, loops=loops, full=full, dtype=dtype)
                out = model(local.graph, local.graph.ndata["feat"])[:local.own]
                counts += _right(parts, local.nodes[:local.own], out)
    right, total = world.all_reduce(counts, cause="control").view(2, 3).tolist()
    return {split: r / n for split, r, n in zip(SPLITS, right, total) if n}


def _whole(parts: TrainingParts, model: Any, world: Comm, own: range, loops: bool, dtype: Any
           ) -> torch.Tensor:
    counts, below = torch.zeros(6, dtype=torch.float64), parts.array("feat")
    blocks = {part: whole_lists(parts, part, loops=loops, dtype=dtype)
              for part in own} if len(own) == 1 else {}
    scratch = _scratch(parts, world)
    try:
        for number, layer in enumerate(model.layers):
            last, above = number + 1 == len(model.layers), None
            for part in own:
                block, nodes = blocks.get(part) or whole_lists(parts, part, loops=loops,
                                                               dtype=dtype)
                out = layer(block, torch.from_numpy(below[nodes]).to(dtype))
                if last:
                    counts += _right(parts, nodes[:block.num_dst_nodes()], out)
                    continue
                if above is None:
                    above = _states(scratch / f"{number}.npy", parts.num_nodes, out)
                above[nodes[:block.num_dst_nodes()]] = out.numpy()
            if not last:
                if above is not None:
                    above.flush()
                world.barrier()  # all states of this layer are there
                below = np.lib.format.open_memmap(scratch / f"{number}.npy", "r")
        world.barrier()  # all have read
    finally:
        if world.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    return counts


def _scratch(parts: TrainingParts, world: Comm) -> Path:
    """A directory for states, the same for all workers: made by the first, who tells its number."""
    number = torch.zeros(1, dtype=torch.int64)
    if world.rank == 0:
        path = Path(tempfile.mkdtemp(prefix="states-", dir=parts.directory))
        number[0] = path.stat().st_ino
        path = path.rename(parts.directory / f"states-of-{int(number)}")
    world.broadcast(number, "control")
    return parts.directory / f"states-of-{int(number)}"


def _states(file: Path, nodes: int, like: torch.Tensor) -> np.memmap:
    """A file of states, which workers of this machine write together; made by who comes first."""
    kind = like.numpy().dtype
    with file.open("ab"):
        pass
    with file.open("r+b") as opened:
        np.lib.format.write_array_header_1_0(opened, {
            "descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False,
            "shape": (nodes, like.shape[1])})
        header = opened.tell()
        opened.flush()
        reserve(opened.fileno(), header + nodes * like.shape[1] * kind.itemsize, file)
    return np.memmap(file, kind, "r+", header, (nodes, like.shape[1]))


def _right(parts: TrainingParts, nodes: np.ndarray, out: torch.Tensor) -> torch.Tensor:
    """Right predictions of nodes by split, then how many there are."""
    split, label = parts.array("split")[nodes], parts.array("label")[nodes]
    right = out.argmax(1).numpy() == label
    there = [(split & bit) != 0 for bit in SPLITS.values()]
    return torch.tensor([*(float((right & mask).sum()) for mask in there),
                         *(float(mask.sum()) for mask in there)], dtype=torch.float64)
