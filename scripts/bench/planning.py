"""How each part of planning grows with relations and partitions, on skewed schemas.

    python scripts/bench/planning.py --json planning.json

Seconds of CPU of every part of planning for schemas that are made up: a twentieth as many node
types as relations, of which five are hubs (the target is one) that most relations start or end at,
and edges by a power law. Every size is a process of its own, whose peak of memory is shown, imports
included. A part that takes more than `--limit` seconds, or whose process has more than 8 GB, is
left out, and so are larger sizes of it; "too large" is what the package refuses.

Nothing is partitioned: planning reads counts alone.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import finish, machine, markdown, parser, run_child
from rich.console import Console

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.part_config import part_config
from dgl_heta.planning.cost import predict
from dgl_heta.planning.dealing import balanced, spread
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.metatree import sub_metatrees
from dgl_heta.planning.owner_choice import choose
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import receptive_fields
from dgl_heta.planning.workload import Workload
from dgl_heta.report.plan_picture import svg
from dgl_heta.report.plan_terminal import terminal

HUBS, HOPS, MEMORY = 5, 2, 8 << 30
TARGET, WORK = "t0", Workload()


def skewed(relations: int, seed: int = 0) -> Schema:
    """A schema with few hub types, of which the first is the target, and many small relations."""
    rng = random.Random(seed)
    types = [f"t{i}" for i in range(max(HUBS + 1, relations // 20))]
    ends = [(t, types[i % HUBS]) for i, t in enumerate(types)][:relations]
    while len(ends) < relations:
        ends.append((rng.choice(types[:HUBS] if rng.random() < 0.5 else types),
                     rng.choice(types[:HUBS] if rng.random() < 0.5 else types)))
    return Schema({t: int(10 ** rng.uniform(2, 7 if i < HUBS else 5)) for i, t in enumerate(types)},
                  {Relation(src, f"p{i}", dst): int(10 * rng.paretovariate(0.5)) % 10**9 + 1
                   for i, (src, dst) in enumerate(ends)},
                  {t: 256 for t in types[1::2]})


def measure(relations: int, parts: int, limit: float, skip: list[str]) -> dict[str, Any]:
    """Seconds of CPU of every part by its name, and bytes of what is written."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _over)
    seconds: dict[str, float | None] = {}
    sizes: dict[str, int] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        if name in skip:
            return None
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            result = call()
            seconds[name] = time.process_time() - started
            return result
        except (TimeoutError, MemoryError):
            seconds[name] = None
        except InputError:  # the file would be larger than is read
            seconds[name], sizes["refused"] = None, 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return None

    schema = skewed(relations)
    trees = timed("metatree and weights", lambda: sub_metatrees(schema, [TARGET], HOPS))
    weights = [tree.weight for tree in trees or ()]
    timed("dealing", lambda: balanced(weights, parts) if parts <= len(weights)
          else spread(weights, parts))
    plan = timed("make_plan, these and what partitions run", lambda: make_plan(
        schema, TARGET, HOPS, parts, assign=balanced))
    if plan:
        measure_plan(plan, timed, sizes)
    return {"relations": relations, "parts": parts, "types": len(schema.node_types),
            "roots": len(schema.into[TARGET]), "seconds": seconds, "bytes": sizes,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def measure_plan(plan: Plan, timed: Callable[[str, Callable[[], Any]], Any],
                 sizes: dict[str, int]) -> None:
    costs = timed("costs and disk_bytes", lambda: predict(plan, WORK))
    timed("expected rows", lambda: len(receptive_fields(
        plan, WORK.fanouts_of(plan.hops), WORK.batch_size * plan.num_parts, WORK.batch_size)))
    timed("owners' choice", lambda: choose(plan, WORK, "auto"))
    if costs:
        timed("terminal", lambda: terminal(plan, costs, Console(file=io.StringIO())))
        timed("SVG", lambda: svg(plan, costs))
    timed("part_config", lambda: len(part_config(plan, "graph", "store")))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "plan.json"
        timed("plan to JSON", lambda: len(plan.to_json()))
        timed("save", lambda: plan.save(file))
        if file.exists():
            sizes["plan.json"] = file.stat().st_size
            timed("load", lambda: Plan.load(file))


def _over(signum: int, frame: object) -> None:
    raise TimeoutError


def main() -> None:
    options = parser(__doc__, "scripts/bench/planning.py --json planning.json")
    options.add_argument("--relations", type=int, nargs="+",
                         default=[10, 100, 1_000, 10_000, 100_000])
    options.add_argument("--parts", type=int, nargs="+", default=[2, 128, 1_024])
    options.add_argument("--limit", type=float, default=30, help="seconds of CPU of a part")
    options.add_argument("--child", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.child:
        print(json.dumps(measure(**json.loads(chosen.child))))
        return
    if chosen.quick:
        chosen.relations, chosen.parts = [10, 100, 1_000], [2, 16]
    before = machine()
    cells: dict[tuple[int, int], dict[str, Any]] = {}
    for relations in chosen.relations:
        for parts in chosen.parts:
            skip = sorted({name for (r, p), cell in cells.items() if r <= relations and p <= parts
                           for name, s in cell["seconds"].items() if s is None})
            case = {"relations": relations, "parts": parts, "limit": chosen.limit, "skip": skip}
            child = run_child([sys.executable, __file__, "--child", json.dumps(case)],
                              f"{relations:,} relations, {parts:,} partitions")
            cells[relations, parts] = child.result
    finish(chosen, "Planning", tables(cells), {"cases": list(cells.values())}, before)


def tables(cells: dict[tuple[int, int], dict[str, Any]]) -> list[str]:
    sizes = markdown(
        ["relations", "partitions", "node types", "root relations", "peak MB", "plan.json MB"],
        [[f"{r:,}", f"{p:,}", f"{c['types']:,}", f"{c['roots']:,}", f"{c['peak_rss_mb']:.0f}",
          f"{c['bytes']['plan.json'] / 1e6:.1f}" if "plan.json" in c["bytes"]
          else "too large" if "refused" in c["bytes"] else ""]
         for (r, p), c in cells.items()])
    names = list(dict.fromkeys(name for c in cells.values() for name in c["seconds"]))

    def cell(name: str, case: tuple[int, int]) -> str:
        taken = cells[case]["seconds"].get(name)
        return f"{taken:.2f}" if taken is not None else "–"

    return [sizes, markdown(
        ["seconds of CPU, relations × partitions", *(f"{r:,} × {p:,}" for r, p in cells)],
        [[name, *(cell(name, case) for case in cells)] for name in names])]


if __name__ == "__main__":
    main()
