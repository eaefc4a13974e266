"""Bytes of a step, as `compare.py` measured them, beside the least that delegation can send.

    python scripts/bench/compare.py --shapes mag freebase --models rgcn hgt --parts PARTS \\
        --systems metis heta heta-exact heta-delegated heta-bf16 --json compare.json
    python scripts/bench/floors.py compare.json --parts PARTS

The floor is what `replica` sent (partial aggregations of seeds, gradients, headers; not the first
values of the rows that it read, which DistDGL's optimizer asks for) and one row of
the hidden width, and its gradient, for each destination row of layer 1 whose in-edges another host
aggregates. With HGT also the query of each such row, and the rows of a type that another host has
where a relation ends at them. The last column is what `train.exchange_dtype = bfloat16` sends in
place of that; gradients of dense parameters stay float32, and so do rows that DistDGL's servers
answer with. Rows are counted in three steps sampled from the same parts. Ids,
maxima and sums of attention are not in the floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from common import Column, grouped, markdown
from compare import Setting

from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.partition.part_config import PLAN_FILE
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store

STEPS, ITEM = 3, 4


def rows_between_hosts(directory: Path, fanouts: tuple[int, ...], batch: int, steps: int,
                       attends: bool) -> float:
    """Rows of the hidden width in a step, of all hosts, that other hosts must make or have."""
    plan, store = Plan.load(directory / PLAN_FILE), Store(directory / "store")
    alone, (target,), count = plan.without_owners(), plan.targets, 0
    owners = {r.src: place for r, place in plan.offloaded.items()}
    train = np.flatnonzero(store.array(target, TRAIN_MASK))
    for step in range(STEPS):
        size = min(batch * plan.num_parts, len(train) // steps)  # an epoch's last step is smaller
        drawn = np.random.default_rng(step).choice(train, size, replace=False)
        seeds = {target: np.sort(drawn)}
        for own in plan.partitions:
            sampler = NeighborSampler(store, SamplingScope.of(alone, own.index), fanouts, 0)
            shares = {target: SeedShares.even(len(drawn), plan.num_parts, own.index)}
            first = next(b for b in sampler.sample(seeds, shares, step).blocks if b.layer == 1)
            for dst, owner in {(r.dst, owners[r.src]) for r in own.asks}:
                wanted = np.zeros(first.num_dst.get(dst, 0), dtype=bool)
                for part in first.edges:
                    if part.relation in own.asks and part.relation.dst == dst and (
                            owners[part.relation.src] == owner):
                        wanted[part.index] |= np.diff(part.indptr.numpy()) > 0
                count += int(wanted[len(seeds.get(dst, ())):].sum()) * (2 if attends else 1)
            if attends:  # a destination's own state is its learnable row
                count += sum(first.num_dst.get(t, 0) for t, owner in owners.items()
                             if owner != own.index)
    return count / STEPS


def rows_of(found: dict[str, Any], parts: Path) -> list[list[str]]:
    """Rows of the table: one for each graph and model."""
    args = argparse.Namespace(**found["arguments"])
    columns = Column("bytes", "bytes", 1e-6), Column("rows", "causes/learnable", 1e-6)
    systems: dict[tuple[str, float, str], dict[str, float]] = {}
    for (shape, cohesion, model, system), sent in grouped(
            found["rows"], ("shape", "cohesion", "model", "system"), columns).items():
        of = systems.setdefault((shape, float(cohesion), model), {})
        of[system] = statistics.median(sent["bytes"])
        if system == "heta":
            of["kept"] = of["heta"] - statistics.median(sent["rows"] or [0.0])
    fanouts, cells = tuple(map(int, args.fanouts.split(","))), []
    for (shape, cohesion, model), sent in systems.items():
        graph = Setting(shape, args.scales[shape], cohesion, model, args.hosts[0])
        kind = f"{args.hosts[0]}-meta-delegated-{len(fanouts)}-{model}"
        steps = next(run["epochs"][-1]["steps"] for run in found["runs"] if run["shape"] == shape)
        rows = rows_between_hosts(parts / f"{graph.name}-{kind}", fanouts,
                                  args.batch_size, steps, model == "hgt")
        each = 2 * args.hidden * ITEM
        floor, ours = sent["kept"] + rows * each / 1e6, sent["heta-delegated"]
        moved = [f"{sent['heta-exact']:.1f}"] if "heta-exact" in sent else [""]
        short = [f"{sent['heta-bf16']:.1f}"] if "heta-bf16" in sent else [""]
        cells.append([shape, f"{cohesion:g}", model, f"{sent['metis']:.1f}",
                      f"{sent['heta']:.1f}", *moved, f"{rows:,.0f}", f"{floor:.1f}",
                      f"{ours:.1f}", f"{ours / floor:.2f}",
                      f"{100 * (ours / sent['metis'] - 1):.0f} %", *short])
    return cells


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("figures", type=Path, nargs="+", help="what compare.py --json wrote")
    options.add_argument("--parts", type=Path, required=True, help="compare.py's --parts")
    chosen = options.parse_args()
    print(markdown(["graph", "cohesion", "model", "METIS", "`replica`", "rows move",
                    "rows from others", "floor", "delegated", "÷ floor", "than METIS",
                    "bfloat16"],
                   [row for path in chosen.figures
                    for row in rows_of(json.loads(path.read_text()), chosen.parts)]))


if __name__ == "__main__":
    main()
