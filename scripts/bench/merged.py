"""A training step by kernel, interleaved, and the same layers by plain DGL, in one process.

    .venv/bin/python scripts/bench/merged.py [--graphs freebase:scale=0.1 …] [--rounds 9]

For each synthetic graph and model: milliseconds of processor time of a step (reading, forward,
backward, update; sampling is left out) by the kernels `fused` and `merged`, and of forward and
backward alone, which read and project static features, beside plain DGL's HeteroGraphConv on the
same batches (GraphConv, GATConv and an HGT attention per relation, from systems/distdgl/train.py,
without a head and a loss). One thread. Kernels must agree on the loss first. What is not compared:
bytes, several workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import finish, machine, markdown, parser, progress, work_dir
from torch import Tensor, nn

from dgl_heta.graph.schema import Schema
from dgl_heta.hooks.manager import Plugins
from dgl_heta.models import ModelSpec
from dgl_heta.nn import kernel_in_use, use_kernel
from dgl_heta.partition.graph_input import open_input
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.setup import build_engine

GRAPHS = ("synthetic-freebase:scale=0.1", "synthetic-donor:scale=0.1", "synthetic-mag:scale=0.1")
MODELS = ("rgcn", "rgat", "hgt")


def main() -> None:
    options = parser(__doc__, "scripts/bench/merged.py --rounds 9")
    options.add_argument("--graphs", nargs="+", default=list(GRAPHS), metavar="NAME")
    options.add_argument("--models", nargs="+", default=list(MODELS))
    options.add_argument("--kernels", nargs="+", default=["fused", "merged"])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--batch", type=int, default=1024)
    args = options.parse_args()
    if args.quick:
        args.graphs, args.rounds = ["synthetic-freebase:scale=0.01"], 2
    before, rows, data = machine(), [], []
    torch.set_num_threads(1)
    with work_dir(args) as path:
        for number, name in enumerate(args.graphs):
            progress(f"{name} …")
            source = open_input(name, Plugins()).source
            if source is None:
                raise SystemExit(f"{name} is not the name of a data set")
            write_store(source, path / str(number))
            store = Store(path / str(number))
            for model in args.models:
                found = measure(store, model, args)
                data.append({"graph": name, "model": model, **found})
                rows.append(row(name, model, found, args.kernels))
                progress(" | ".join(rows[-1]))
    header = ["graph", "relations", "model", *(f"step, {k}" for k in args.kernels),
              f"{args.kernels[0]} ÷ {args.kernels[-1]}",
              *(f"f + b, {k}" for k in args.kernels), "f + b, DGL",
              f"DGL ÷ {args.kernels[-1]}"]
    finish(args, "A training step by kernel, ms", [markdown(header, rows)], {"steps": data}, before)


def row(graph: str, model: str, found: dict[str, Any], kernels: list[str]) -> list[str]:
    step, inner, last = found["step"], found["inner"], kernels[-1]
    plain = found["dgl"]
    return [graph.removeprefix("synthetic-"), str(found["relations"]), model,
            *(f"{step[k]:.0f}" for k in kernels), f"{step[kernels[0]] / step[last]:.2f}",
            *(f"{inner[k]:.0f}" for k in kernels), "–" if plain is None else f"{plain:.0f}",
            "–" if plain is None else f"{plain / inner[last]:.1f}"]


def measure(store: Store, model: str, args: argparse.Namespace) -> dict[str, Any]:
    """Median milliseconds by kernel; the store's batches are the same for all."""
    task = store.manifest.task
    assert task is not None
    plan = make_plan(store.schema, [task.target], 2, 1)
    engines, kernels = {}, {}
    for name in args.kernels:
        settings = load_settings(None, [
            f"model.name={model}", f"train.kernel={name}", "train.threads=1", "train.device=cpu",
            "run.prove=off", f"train.batch_size={args.batch}", f"model.hidden={args.hidden}"], {})
        engines[name] = build_engine(store, plan, settings, Plugins())
        engines[name].start_epoch(1)
        kernels[name] = kernel_in_use()
    first = next(iter(engines.values()))
    steps = [step for step in first.steps("train", 1) if step.size == args.batch] or first.steps(
        "train", 1)
    plain = plain_dgl(store.schema, first.spec, model, args, task.target)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    of_dgl, losses = [], []
    for turn in range(args.rounds + 2):
        step = steps[turn % len(steps)]
        for name, engine in engines.items():
            use_kernel(kernels[name])
            batch = engine.sample(step, turn)
            inner, whole = stopped(engine)
            started = time.process_time()
            statistics_of = engine.train_step(batch)
            times[name].append((time.process_time() - started, inner()))
            whole()
            if turn == 0:
                losses.append(float(statistics_of[0]))
        if plain is not None:
            batch = first.sample(step, turn)
            of_dgl.append(plain(batch.mini_batch(), batch.inputs(train=False)))
    if max(losses) - min(losses) > 1e-4 * abs(losses[0]):
        raise SystemExit(f"the kernels' losses differ: {losses}")
    return {"relations": len(store.schema.relations), "rounds": args.rounds,
            "step": {k: 1e3 * statistics.median(t for t, _ in v[2:]) for k, v in times.items()},
            "inner": {k: 1e3 * statistics.median(t for _, t in v[2:]) for k, v in times.items()},
            "dgl": 1e3 * statistics.median(of_dgl[2:]) if of_dgl else None}


def stopped(engine: Any) -> tuple[Callable[[], float], Callable[[], None]]:
    """Processor seconds of forward and backward of the next step, and what ends the counting."""
    counted, timed = [0.0], engine.timed

    class Stage:
        def __init__(self, stage: str) -> None:
            self.stage, self.body = stage, timed(stage)

        def __enter__(self) -> None:
            self.body.__enter__()
            self.started = time.process_time()

        def __exit__(self, *error: Any) -> None:
            if self.stage in ("forward", "backward"):
                counted[0] += time.process_time() - self.started
            self.body.__exit__(*error)

    engine.timed = Stage

    def end() -> None:
        del engine.timed

    return lambda: counted[0], end


def plain_dgl(schema: Schema, spec: ModelSpec, model: str, args: argparse.Namespace, target: str
              ) -> Callable[[MiniBatch, dict[str, Tensor]], float] | None:
    """Seconds of forward and backward of plain DGL's layers on a batch, static features read and
    projected as part of it, as here; None without DGL."""
    try:
        import dgl
    except ImportError:
        return None
    sys.path.insert(0, str(Path(__file__).parent / "systems" / "distdgl"))
    import train as script

    g = SimpleNamespace(etypes=[r.etype for r in schema.relations], ntypes=schema.node_types)
    heads = 4

    def layer() -> nn.Module:
        if model == "hgt":
            return script.Transformer(g, args.hidden, heads)
        if model == "rgat":
            return script.Convolution(lambda: dgl.nn.GATConv(
                args.hidden, args.hidden // heads, heads, allow_zero_in_degree=True, bias=False),
                g, args.hidden)
        return script.Convolution(lambda: dgl.nn.GraphConv(
            args.hidden, args.hidden, norm="right", bias=False, allow_zero_in_degree=True), g,
            args.hidden)

    layers = nn.ModuleList([layer(), layer()])
    project = nn.ModuleDict({t: nn.Linear(spec.input_dims[t], args.hidden) for t in spec.static})

    def run(batch: MiniBatch, inputs: dict[str, Tensor]) -> float:
        blocks = [graph(block) for block in batch.blocks]
        rows = {t: x if t in project else x.detach().clone().requires_grad_()
                for t, x in inputs.items() if len(x)}
        layers.zero_grad(set_to_none=True)
        started = time.process_time()
        states: dict[str, Tensor] = {
            t: project[t](x.contiguous().to(torch.float32)) if t in project else x
            for t, x in rows.items()}
        for one, block in zip(layers, blocks):
            states = one(block, states)
        states[target].square().mean().backward()
        return time.process_time() - started

    def graph(block: Any) -> Any:
        data: dict[tuple[str, ...], list[tuple[Tensor, Tensor]]] = {}
        rows = dict(block.num_dst)
        for edges in block.edges:
            ends = torch.repeat_interleave(torch.arange(edges.num_rows), edges.indptr.diff())
            found = data.setdefault(tuple(edges.relation), [])
            found.append((edges.indices.long(), ends + edges.start))
        joined = {r: tuple(torch.cat(ends) for ends in zip(*pieces)) for r, pieces in data.items()}
        made = dgl.create_block(joined, dict(block.num_src),
                                {t: rows.get(t, 0) for t in block.num_src})
        made.create_formats_()
        return made

    return run


if __name__ == "__main__":
    main()
