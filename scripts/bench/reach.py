"""Expected rows and edges of a step (dgl_heta/planning/receptive_field.py) beside those sampled.

    python scripts/bench/reach.py [--work DIR] [--shapes mag …]

Synthetic graphs of the five shapes, scaled down; a step of one process with so many seeds. Numbers
are expected ÷ sampled: 1 is right. Stores that lie in DIR from before are taken as they are.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from common import markdown, progress

from dgl_heta.graph.datasets.synthetic import SHAPES, generate
from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.receptive_field import reach_of_one_process
from dgl_heta.planning.workload import Workload
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store

SCALES = {"mag": 0.1, "freebase": 0.02, "donor": 0.02, "igb-het": 0.005, "mag240m": 0.005}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep the stores here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = [row for shape in chosen.shapes
                for row in ratios(shape, chosen.work or Path(temporary))]
    print(markdown(["graph", "fanouts", "seeds", "bytes of input rows", "edges"], rows))
    for column, what in ((3, "bytes of input rows"), (4, "edges")):
        values = [float(row[column]) for row in rows]
        print(f"\n{what}: {min(values):.2f} to {max(values):.2f}")


def ratios(shape: str, directory: Path) -> list[list[str]]:
    """Rows of the table for one graph."""
    path = directory / f"{shape}-{SCALES[shape]:g}"
    if not Store.is_store(path):
        progress(f"{path.name} …")
        write_store(generate(shape, SCALES[shape]), path)
    store, target = Store(path), SHAPES[shape].target
    plan = make_plan(store.schema, target, 2, 1)
    train, row_bytes = np.flatnonzero(store.array(target, TRAIN_MASK)), Workload().row_bytes
    widths = {t: store.schema.feature_bytes.get(t) or row_bytes for t in store.schema.node_types}
    rows = []
    for fanouts, size in product(((25, 20), (10, 5)), (128, 2048)):
        seeds = np.sort(np.random.default_rng(0).choice(train, size, replace=False))
        batch = NeighborSampler(store, SamplingScope.of(plan, 0), fanouts, 0).sample(
            {target: seeds})
        step = reach_of_one_process(plan, fanouts, size)
        sampled = sum(widths[t] * len(ids) for t, ids in batch.input_nodes.items())
        edges = sum(len(part.indices) for block in batch.blocks for part in block.edges)
        rows.append([shape, f"{fanouts[0]}, {fanouts[1]}", str(size),
                     f"{sum(widths[t] * n for t, n in step.inputs.items()) / sampled:.2f}",
                     f"{sum(layer.edges for layer in step.layers) / edges:.2f}"])
    return rows


if __name__ == "__main__":
    main()
