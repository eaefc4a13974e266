"""Bytes of a step, as `compare.py` measured them, beside the least that delegation can send.

    python scripts/bench/compare.py --shapes mag freebase --models rgcn hgt --parts PARTS \\
        --systems metis heta heta-exact heta-delegated --json compare.json
    python scripts/bench/floors.py compare.json --parts PARTS

The floor is what `replica` sent (partial aggregations of seeds, gradients, headers) and, for each
destination row of layer 1 that a host has others aggregate for it, one row of the hidden width back
and its gradient; with HGT the row's query there and its gradient, too. Rows are counted in three
steps sampled from the same parts. Ids, maxima and sums of attention are not in the floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown
from compare import name

from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.partition.part_config import PLAN_FILE
from dgl_heta.planning.delegation import undelegated
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store

STEPS, ITEM = 3, 4


def asked_rows(directory: Path, fanouts: tuple[int, ...], batch: int) -> float:
    """Destination rows of layer 1 in a step for which a host asks another one, of all hosts."""
    plan, store = Plan.load(directory / PLAN_FILE), Store(directory / "store")
    if not plan.delegates:
        return 0.0
    alone, (target,), count = undelegated(plan), plan.targets, 0
    train = np.flatnonzero(store.array(target, TRAIN_MASK))
    for step in range(STEPS):
        drawn = np.random.default_rng(step).choice(train, batch * plan.num_parts, replace=False)
        seeds = {target: np.sort(drawn)}
        for own in plan.partitions:
            sampler = NeighborSampler(store, SamplingScope.of(alone, own.index), fanouts, 0)
            shares = {target: SeedShares.even(len(drawn), plan.num_parts, own.index)}
            first = next(b for b in sampler.sample(seeds, shares, step).blocks if b.layer == 1)
            rows = {t: n - len(seeds.get(t, ())) for t, n in first.num_dst.items()}
            count += sum(rows.get(dst, 0)
                         for dst, _ in {(r.dst, plan.delegates[r]) for r in own.asks})
    return count / STEPS


def rows_of(found: dict[str, Any], parts: Path) -> list[list[str]]:
    """Rows of the table: one for each graph and model."""
    args = argparse.Namespace(**found["arguments"])
    systems: dict[tuple[str, str], dict[str, float]] = {}
    for row in found["rows"]:
        of = systems.setdefault((row["shape"], row["model"]), {})
        of[row["system"]] = statistics.median(row["bytes"]) / 1e6
    fanouts, cells = tuple(map(int, args.fanouts.split(","))), []
    for (shape, model), sent in systems.items():
        kind = f"{args.hosts[0]}-meta-delegated-{len(fanouts)}-{model}"
        rows = asked_rows(parts / f"{name(args, shape)}-{kind}", fanouts, args.batch_size)
        each = 2 * args.hidden * ITEM * (2 if model == "hgt" else 1)
        floor, ours = sent["heta"] + rows * each / 1e6, sent["heta-delegated"]
        moved = [f"{sent['heta-exact']:.1f}"] if "heta-exact" in sent else [""]
        cells.append([shape, f"{args.cohesion:g}", model, f"{sent['metis']:.1f}",
                      f"{sent['heta']:.1f}", *moved, f"{rows:,.0f}", f"{floor:.1f}",
                      f"{ours:.1f}", f"{ours / floor:.2f}",
                      f"{100 * (ours / sent['metis'] - 1):.0f} %"])
    return cells


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("figures", type=Path, nargs="+", help="what compare.py --json wrote")
    options.add_argument("--parts", type=Path, required=True, help="compare.py's --parts")
    chosen = options.parse_args()
    print(markdown(["graph", "cohesion", "model", "METIS", "`replica`", "rows move",
                    "rows asked for", "floor", "delegated", "÷ floor", "than METIS"],
                   [row for path in chosen.figures
                    for row in rows_of(json.loads(path.read_text()), chosen.parts)]))


if __name__ == "__main__":
    main()
