"""Kernels of a training step, the bytes that they move and hold, on a GPU that is pretended.

    python -m tests.support.pretended.coefficients                                 # five minutes

One worker, two layers, the second step of each graph, model and kernel. By model and kernel

- kernels are fitted by a constant + a number for each relation that is run, over all layers;
- bytes that they read and write, and the most that a step holds beside parameters and optimizer, by
  bytes of messages (a row of hidden states for each edge), of the ends of relations (source and
  destination rows of each that is run, as hidden states) and of input rows. Of what is indexed
  only the rows that are read or added count.

These are `COUNTED` of dgl_heta/planning/gpu.py, by which `dgl-heta plan --cluster` forecasts a step
on a GPU. It needs what the pretended device needs: torch 2.2 and a C++ compiler.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dgl_heta.planning.gpu import COUNTED
from dgl_heta.store import Store
from tests.support.pretended import device, pretend, streams
from tests.support.pretended.counts import COUNTS
from tests.support.pretended.engines import engine_of, written

GRAPHS = ("mag:scale=0.02", "igb-het:scale=0.001", "donor:scale=0.02", "freebase:scale=0.02",
          "am:scale=0.1")
BYTES = ("messages", "ends", "inputs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), metavar="NAME")
    graphs, found = parser.parse_args().graphs, []
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    moved = Moved()
    with pretend():
        for graph in graphs:
            with tempfile.TemporaryDirectory() as path:
                store = written(f"synthetic-{graph}", Path(path, "store"))
                for kernel, models in COUNTED.items():
                    for model in models:
                        found.append({"graph": graph, "model": model, "kernel": kernel,
                                      **counted(store, model, kernel, moved)})
                        if len(found) == 1:
                            heading(found[0])
                        print("|", " | ".join(map(str, found[-1].values())), "|", flush=True)
    print()
    fits = [fit(found, model, kernel) for kernel, models in COUNTED.items() for model in models]
    heading(fits[0])
    for one in fits:
        print("|", " | ".join(map(str, one.values())), "|")


def heading(row: dict[str, Any]) -> None:
    print("|", " | ".join(row), "|\n|" + " ---: |" * len(row))


class Moved:
    """Counts the bytes that kernels of the pretended device read and write, and those held."""

    def __init__(self) -> None:
        self.bytes = self.live = self.most = 0
        self._sizes: dict[int, int] = {}
        self._launched, self._made, self._gone = device._launched, streams.made, streams.gone
        device._launched, streams.made, streams.gone = self.launched, self.made, self.gone

    def launched(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        made = self._launched(func, name, args, kwargs, tensors)
        if name not in device.VIEWS:
            sizes, result = [x.nbytes for x in tensors], sum(
                x.nbytes for x in device._tensors([made]))
            if name in ("index_select", "index", "gather"):
                sizes = [*sizes[1:], result]
            elif name in ("index_add_", "scatter_add_", "index_put_"):
                sizes, result = sizes[1:], 2 * max(sizes[1:])
            self.bytes += sum(sizes) + result
        return made

    def made(self, tensor: Tensor) -> int:
        address = self._made(tensor)
        if address not in self._sizes:
            self._sizes[address] = tensor.untyped_storage().nbytes()
            self.live += self._sizes[address]
            self.most = max(self.most, self.live)
        return address

    def gone(self, address: int, storage: Any) -> None:
        self._gone(address, storage)
        if not streams._live[address]:
            self.live -= self._sizes.pop(address)


def counted(store: Store, model: str, kernel: str, moved: Moved) -> dict[str, int]:
    """What a step runs and reads, and its kernels, waits and bytes."""
    engine = engine_of(store, f"model.name={model}", f"train.kernel={kernel}")
    steps = engine.steps("train", 1)
    for number in range(2):
        gc.collect()  # what engines before held
        COUNTS.clear()
        held, moved.bytes, moved.most = moved.live, 0, moved.live
        step = steps[number % len(steps)]
        batch = engine.sample(step, number)
        engine.train_step(batch)
    if COUNTS.problems:
        raise SystemExit(f"the pretended device refused: {COUNTS.problems}")
    row, run = 4 * engine.settings.model.hidden, [(block, part) for block in batch.blocks
                                           for part in block.edges]
    return {"run": len(run), "edges": (edges := sum(len(part.indices) for _, part in run)),
            "messages": edges * row, "ends": sum(
                block.num_src[part.relation.src] + len(part.indptr) - 1 for block, part in run)
            * row, "inputs": sum(
                len(ids) * (store.schema.feature_bytes.get(t) or row)
                for t, ids in batch.input_nodes.items()),
            "kernels": COUNTS.kernels.total(), "moved": moved.bytes, "held": moved.most - held,
            "waits": COUNTS.syncs.total(), "up": COUNTS.up.total(), "down": COUNTS.down.total()}


def fit(found: list[dict[str, Any]], model: str, kernel: str) -> dict[str, Any]:
    """Lines through a model's and kernel's counts, with the largest relative error of each."""
    of = [one for one in found if (one["model"], one["kernel"]) == (model, kernel)]
    said = {"kernel": kernel, "model": model}
    for what, by in (("kernels", ("", "run")), ("moved", BYTES), ("held", BYTES)):
        each = np.array([[one.get(name, 1) / one[what] for name in by] for one in of])
        factors = _positive(each)
        said |= {f"{what}: {name or 'fixed'}": f"{x:.1f}" for name, x in zip(by, factors)}
        said[f"{what}, off"] = f"{np.abs(each @ factors - 1).max():.0%}"
    return said


def _positive(each: np.ndarray) -> np.ndarray:
    """The factors, none negative, by the least sum of relative squares."""
    use = np.ones(each.shape[1], bool)
    while True:
        factors = np.zeros(len(use))
        factors[use] = np.linalg.lstsq(each[:, use], np.ones(len(each)), None)[0]
        if factors.min() >= 0:
            return factors
        use &= factors > 0


if __name__ == "__main__":
    main()
