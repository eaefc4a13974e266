"""A training step on a GPU, by stage, beside the CPU: seconds, kernels, waits of the host, memory.

    python scripts/bench/gpu_steps.py --out steps.jsonl --seconds 240

One worker trains on synthetic graphs: mag, Freebase and, by the two models of HiFuse, those of its
Table 2. Each case is a graph, a model and a variant: the default, the kernel `fused`, batches
sampled there or on demand, cached rows, rows in memory, the CPU. A case takes steps until its time
is over, after three that compile and warm up, and then one that torch.profiler watches: kernels on
the device, their milliseconds, the eight kinds of them that take longest, copies, and calls that
wait for the device. Seconds by stage include what it waits for.

Each line of the file is a case as it ended. Cases that the file has are left out, so that another
run goes on where one was killed; a case that killed it is one that failed. Cases come in rounds
over graphs and models, so that less time leaves out variants, and not models.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dgl_heta_hifuse.shapes import SHAPES as RELATIONAL

from dgl_heta.graph.datasets.synthetic import SHAPES as LARGE
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.tools import generate
from dgl_heta.training import caches
from dgl_heta.training.engine import Engine
from dgl_heta.training.setup import build_engine

SHAPES = LARGE | RELATIONAL
SCALES = {"mag": 0.1, "freebase": 0.05, "aifb": 1.0, "mutag": 1.0, "bgs": 1.0, "am": 0.25}
MODELS = ("rgcn", "rgat", "hgt")
OF_HIFUSE = (("rgcn", "rgat"), ("default", "fused", "CPU"))
"""Models and variants on the graphs of HiFuse's paper, which has no other model."""
FUSED, THERE = "train.kernel=fused", "train.batches=gpu"
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "fused": [FUSED],
    "CPU": ["train.device=cpu"],
    "sampled there": [THERE],
    "on demand": ["train.batches=on-demand"],
    "rows in memory": ["cache.policy=none"],
    "cached": ["cache.policy=miss_penalty"],
    "fused, sampled there": [FUSED, THERE],
}
STAGES = ("sample", "fetch", "forward", "backward", "update")
WARM = 3
LEFT = 15
"""Seconds that must be left for another case to begin."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
BROKEN = 70
"""The exit status after an error that leaves the process no GPU to work with."""
PRETENDED: Any = globals().get("PRETENDED")
"""The counts of a pretended device, by whose program this one runs; None on a real one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file, one line of JSON a case")
    parser.add_argument("--seconds", type=float, default=240, help="for all cases (default: 240)")
    parser.add_argument("--case-seconds", type=float, default=2, help="of steps (default: 2)")
    parser.add_argument("--graphs", nargs="+", choices=SCALES, default=list(SCALES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the graphs' own")
    args = parser.parse_args()
    if PRETENDED is None and not torch.cuda.is_available():
        raise SystemExit("error: PyTorch sees no GPU here")
    run(args)


def run(args: argparse.Namespace) -> None:
    """Measure the cases that the file lacks, while there is time."""
    end = time.monotonic() + args.seconds
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if (
        args.out.exists()) else []
    known = {(case["graph"], case["model"], case["variant"]) for case in done}
    if done and "begun" in done[-1]:  # it took the process with it
        write(args.out, {**done[-1], "error": "the process that measured it was ended"})
    with tempfile.TemporaryDirectory(prefix="dgl-heta-gpu-") as path:
        stores: dict[str, Store] = {}
        for variant, graph, model in itertools.product(args.variants, args.graphs, args.models):
            beyond = graph in RELATIONAL and not (
                model in OF_HIFUSE[0] and variant in OF_HIFUSE[1])
            if beyond or (graph, model, variant) in known:
                continue
            if time.monotonic() > end - LEFT:
                print("no time is left for", graph, model, variant, flush=True)
                continue
            if graph not in stores:
                write_store(generate(SHAPES[graph], SCALES[graph] * args.scale), f"{path}/{graph}")
                stores[graph] = Store(f"{path}/{graph}")
            case: dict[str, Any] = {"graph": graph, "model": model, "variant": variant}
            write(args.out, {**case, "begun": True})
            try:
                found = measured(stores[graph], model, VARIANTS[variant], args.case_seconds,
                                 Path(path))
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            write(args.out, {**case, **found})
            print(json.dumps({**case, **found}), flush=True)
            if "CUDA error" in found.get("error", ""):
                raise SystemExit(BROKEN)


def write(file: Path, case: dict[str, Any]) -> None:
    """Append a line that a killed process cannot have half written."""
    with open(file, "ab") as out:
        out.write(json.dumps(case).encode() + b"\n")


def measured(store: Store, model: str, chosen: list[str], seconds: float, scratch: Path
             ) -> dict[str, Any]:
    """What a step takes, and what one launches."""
    settings = load_settings(None, ["train.device=cuda", f"model.name={model}", "model.hidden=64",
                                    "train.fanouts=25,20", "train.batch_size=1024",
                                    "run.verify=false", *chosen], {})
    plugins = Plugins().configured(settings)
    task = store.manifest.task
    assert task is not None
    plan = make_plan(store.schema, [task.target], 2, 1)
    reset_peak()
    engine = build_engine(store, plan, settings, plugins, scratch)
    cached = caches.attach(engine)
    steps = engine.steps("train", 1)
    times: list[float] = []
    stages: list[dict[str, float]] = []
    losses: list[float] = []
    engine.start_epoch(1)
    done = engine.train(list(itertools.islice(itertools.cycle(steps), 10_000)), 1 << 20)
    end = time.monotonic() + seconds
    before = dict(engine.seconds)
    while len(times) < WARM + 2 or time.monotonic() < end:
        started = time.perf_counter()
        losses.append(float(next(done)[0]))
        times.append(time.perf_counter() - started)
        after = dict(engine.seconds)
        stages.append({stage: after[stage] - before[stage] for stage in STAGES})
        before = after
        if len(times) == WARM:
            end = time.monotonic() + seconds
    found = {"steps": len(times) - WARM, "loss": losses[WARM + 1],  # the same step in all
             "ms": 1e3 * statistics.median(times[WARM:]),
             "ms_by_stage": {stage: 1e3 * statistics.median(s[stage] for s in stages[WARM:])
                             for stage in STAGES},
             "peak_mb": peak_mb(engine), "cached_rows": sum(
                 of["hits"] for of in cached.counted().values()) if cached else 0}
    if engine.device.type == "cuda":
        found |= launched(lambda: next(done))
    done.close()  # type: ignore[attr-defined]
    return found


def reset_peak() -> None:
    with contextlib.suppress(OSError):  # where it cannot be set back, it is the largest case's
        Path("/proc/self/clear_refs").write_text("5")
    if not PRETENDED:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_mb(engine: Engine) -> float:
    """The peak of the device's memory, or of the process's, in MB."""
    if engine.device.type == "cuda" and PRETENDED is None:
        return torch.cuda.max_memory_allocated(engine.device) / 1e6
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def launched(step: Callable[[], Any]) -> dict[str, Any]:
    """Kernels of a step and their milliseconds, copies, and calls that wait for the device."""
    if PRETENDED is not None:
        PRETENDED.clear()
        step()
        counted = PRETENDED.to_json()
        return {"kernels": counted["kernels"], "waits": counted["syncs"], "problems": counted[
            "problems"]}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    events = seen.events() or []
    # PyTorch notes there, too, from when to when an optimizer's step ran.
    on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA
                 and not e.name.startswith("Optimizer.")]
    kernels = [e for e in on_device if not e.name.startswith(("Memcpy", "Memset"))]
    busy = sum(e.time_range.elapsed_us() for e in on_device) / 1e3
    by_name: dict[str, list[float]] = {}
    for event in on_device:
        by_name.setdefault(event.name[:80], []).append(event.time_range.elapsed_us() / 1e3)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:8]
    return {"kernels": len(kernels), "busy_ms": busy,
            "longest": {name: [len(times), sum(times)] for name, times in longest},
            "copies": {kind: sum(e.name.startswith(f"Memcpy {kind}") for e in on_device)
                       for kind in ("HtoD", "DtoH", "DtoD")},
            "waits": sum(e.name in WAITS for e in events) - 1}  # but for the one above


if __name__ == "__main__":
    main()
