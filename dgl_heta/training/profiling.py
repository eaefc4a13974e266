"""The contents that a feature cache would have, and what it would save: one worker's part."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dgl_heta.cache.policies import choose
from dgl_heta.hooks.manager import Plugins

if TYPE_CHECKING:
    from dgl_heta.training.engine import Engine

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Capacities to look at, as shares of all rows that a worker could cache."""

Report = Callable[[dict[str, Any]], None]


def profile_worker(engine: Engine, job: Mapping[str, Any], registry: Plugins, report: Report
                   ) -> dict[str, Any]:
    """One worker's part: writes `profile-RANK.json`; returns a summary."""
    from dgl_heta.training.caches import Profiler

    profiler = Profiler(engine, Path(job["profiles"]), "visits", report, fresh=True)
    start = time.perf_counter()
    visits = profiler.visits()
    between = time.perf_counter()
    penalties = profiler.penalties()
    end = time.perf_counter()
    row_bytes = profiler.row_bytes()
    ratios = {t: penalties[t].at(visits.per_batch(t)) for t in profiler.sizes}
    types = {t: {
        "kind": "static" if t in engine.static.sources else "learnable",
        "nodes": profiler.sizes[t], "row_bytes": row_bytes[t],
        "visits": int(visits.counts[t].sum()), "visited": int(np.count_nonzero(visits.counts[t])),
        "per_batch": visits.per_batch(t), "penalty": ratios[t], **penalties[t].to_json(),
    } for t in profiler.sizes}
    total = sum(profiler.sizes[t] * row_bytes[t] for t in profiler.sizes)
    policies = {}
    for name, provider in registry.providers("cache policy").items():
        policy = provider.value
        if getattr(policy, "counts", "visits") != "visits" or getattr(policy, "replacement", None):
            continue  # of degrees, or of what happens in training
        curve: dict[str, list[float]] = {"capacity_mb": [], "hit_rate": [], "time_saved": []}
        for share in SHARES:
            chosen = choose(policy, visits.counts, row_bytes, ratios, int(total * share))
            hits = {t: int(visits.counts[t][ids].sum()) for t, ids in chosen.items()}
            curve["capacity_mb"].append(total * share / 1e6)
            curve["hit_rate"].append(_share(sum(hits.values()), visits.counts, {}))
            costs = {t: ratios[t] * row_bytes[t] for t in ratios}
            curve["time_saved"].append(_share(sum(n * costs[t] for t, n in hits.items()),
                                              visits.counts, costs))
        policies[name] = curve
    result = {"rank": engine.rank, "batches": visits.batches, "shares": SHARES,
              "seconds": {"visits": between - start, "penalties": end - between},
              "reads": engine.static.reads, "bytes": total, "types": types, "policies": policies,
              "notes": profiler.notes}
    (Path(job["run_dir"]) / f"profile-{engine.rank}.json").write_text(
        json.dumps(result), encoding="utf-8")
    engine.world.barrier()
    return {"ranks": engine.world.size}


def _share(part: float, counts: Mapping[str, np.ndarray], costs: Mapping[str, float]) -> float:
    whole = sum(float(c.sum()) * (costs.get(t, 0.0) if costs else 1.0) for t, c in counts.items())
    return part / whole if whole else 0.0
