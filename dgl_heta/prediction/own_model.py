"""All nodes' outputs of a model that a loop of one's own trains."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.times import read_instant
from dgl_heta.models import HGNN, slot
from dgl_heta.nn.cross import CrossRelation
from dgl_heta.prediction.layerwise import Layerwise, head
from dgl_heta.system.disk import new_array
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.training.distributed import DistributedModel
from dgl_heta.training.table_files import mapped_tensors
from dgl_heta.training.trained_model import write_weights


def predict_all(model: DistributedModel, out: str | Path, chunk: int = 8192,
                time: int | str | None = None) -> np.ndarray:
    """Compute the outputs for all nodes of the target, layer by layer, with all neighbours.

    Every state is computed once. All workers call it, with a path on a disk that all see.

    Parameters
    ----------
    out : a new file of NumPy's, (nodes, outputs).
    chunk : nodes to compute at a time.
    time : of a graph with times, the one at which all nodes are seen, as `dgl-heta predict --time`
        takes it, or seconds since 1970; what comes for nodes whose rows are later says nothing.

    Returns
    -------
    The outputs, mapped, in the model's dtype.

    Raises
    ------
    InputError
        The model is no :class:`~dgl_heta.HGNN`, the partition has several targets, metapaths or
        no replication, `out` exists, `time` is none, or none of the graph's.
    """
    moment = None if time is None else read_instant(time, "time")
    part, module, out = model.part, model.module, Path(out)
    # Without replication no partition has a sub-metatree, by whose roots the last layer is shared.
    if (not isinstance(module, HGNN) or len(part.plan.targets) > 1 or part.plan.metapaths
            or part.plan.replication != "full"):
        raise InputError("layer by layer, a model must be an HGNN with one target, without "
                         "metapaths, on a partition with full replication; for another one take a "
                         "loader over all nodes with fanouts of -1")
    if any(part.world.all_gather_json(out.exists(), "control")):
        raise InputError(f"{out} exists already; give a new file")
    (target,) = part.plan.targets
    finish, width = head(module, target), module.heads[slot(target)].out_features
    merging = [m for m in module.modules() if isinstance(m, CrossRelation)]
    exchanges = [m.exchange for m in merging]
    modes = {m: m.training for m in module.modules()}
    with ExitStack() as stack:
        own = "" if part.rank else str(stack.enter_context(
            scratch_directory(out.parent.resolve(), out.name)))
        scratch = Path(part.world.all_gather_json(own, "control")[0])
        seen = part.world.all_gather_json(scratch.is_dir(), "control")
        if not all(seen):
            raise InputError(f"worker {seen.index(False)} does not see {scratch.parent}, where "
                             "worker 0 writes; give a path on a disk that all workers see")
        write_weights(scratch / "weights", module, part.learnable, part.world)
        if not part.rank:
            new_array(scratch / "rows.npy", "f8" if finish.weight.dtype == torch.float64 else "f4",
                      (part.store.schema.node_counts[target], width)).flush()
        part.world.barrier()
        weights, _ = mapped_tensors(scratch / "weights")
        rows = np.lib.format.open_memmap(scratch / "rows.npy", "r+")

        def inputs(ntype: str, low: int, high: int) -> Tensor:
            if part.store.has_array(ntype, "feat"):
                return torch.from_numpy(part.store.feature_rows(ntype, low, high))
            return weights[f"features.{slot(ntype)}.weight"][low:high]

        def write(ids: np.ndarray, states: Tensor) -> None:
            rows[ids] = finish(states).cpu().numpy()

        try:
            Layerwise(part.store, part.plan.without_owners(), module, inputs, part.world, scratch,
                      chunk, lambda event: None, moment, part.settings.strictly_before
                      ).run(write)
        finally:
            for each, mode in modes.items():
                each.training = mode
            for merge, exchange in zip(merging, exchanges):
                merge.exchange = exchange
        rows.flush()
        part.world.barrier()
        if not part.rank:
            (scratch / "rows.npy").rename(out)
        part.world.barrier()
    return np.load(out, mmap_mode="r")
