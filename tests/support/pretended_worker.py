"""Workers that train cases by `training.loop.train` on GPUs, or on the CPU. GPUs are pretended, but
where HETA_TESTS_GPU=1 asks for the machine's.

A job is a JSON file {"store", "out", "parts", "meeting", "device", "guests", "cases": {name:
settings}, "again": [name], "visible": [devices]}, the last one by rank, as CUDA_VISIBLE_DEVICES. Of
each case a worker trains an epoch of two steps, goes on from its checkpoint with another one if its
name is in "again", and predicts; it writes, as OUT/DEVICE-PARTS-RANK.json, the losses, what was
counted of the second step, and what was wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # (every optimizer imports it, which takes seconds)
from torch import Tensor

from dgl_heta import Edges, HGNNLayer, ModelSpec
from dgl_heta.cache.visit_profile import hardware
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.nn import kernel_in_use
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.plan import Plan
from dgl_heta.prediction import prediction_worker
from dgl_heta.settings import Settings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training import caches
from dgl_heta.training.engine import Engine
from dgl_heta.training.loop import train
from dgl_heta.training.preemption import PreemptedError
from dgl_heta.training.setup import build_engine, check
from dgl_heta.training.tasks import resolve
from tests.support.copies import copies, within
from tests.support.exact_worker import deal_pieces, delegating, fork_all
from tests.support.graphs import academic, with_tasks
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS
from tests.support.waiting import PATIENCE

GPUS = "0,1"
REAL = os.environ.get("HETA_TESTS_GPU") == "1"
LOST = "lost"
"""A case of this name loses the worker that reports steps, the first one, after one."""
ENDED = "ended"
"""One of this name is ended by SIGTERM in its epoch, and goes on."""
Results = dict[tuple[str, int], list[dict[str, dict[str, Any]]]]
"""(Device, workers): per worker of each case what it found."""


def trained(out: Path, cases: dict[int, dict[str, dict[str, Any]]], again: Sequence[str] = (),
            guests: bool = False, devices: Sequence[str] = ("cpu", "cuda"),
            visible: Sequence[str] = (), papers: int = 60) -> Results:
    """What workers find of `cases`, by the number of workers and by `train.device`."""
    write_store(with_tasks(academic(papers=papers)), out / "store")
    found = {}
    for parts, of_parts in cases.items():
        for where in devices if of_parts else ():
            file = out / f"{where}-{parts}.job"
            file.write_text(json.dumps({
                "store": str(out / "store"), "out": str(out), "parts": parts, "device": where,
                "meeting": str(out / f"meeting-{where}-{parts}"), "guests": guests,
                "again": again, "visible": visible or [GPUS] * parts,
                "cases": {name: _settings(case, parts) for name, case in of_parts.items()}}))
            status, text = copies(__name__).run(file, within(PATIENCE))
            assert status == 0 or LOST in of_parts, text
            written = [out / f"{where}-{parts}-{rank}.json" for rank in range(parts)]
            found[where, parts] = [json.loads(one.read_text()) for one in written if one.exists()]
    return found


def asked(request: Any, cases: dict[str, dict[str, Any]], parts: int
          ) -> dict[str, dict[str, Any]]:
    """Of the cases of so many workers those that the chosen tests of a module are about; all if a
    test about none of them is chosen."""
    of_tests = [getattr(item, "callspec", None) for item in request.session.items
                if item.module is request.module]
    if None in of_tests:
        return cases
    chosen = [(one.params.get("parts", 1), one.params["name"]) for one in of_tests if one]
    return {name: case for name, case in cases.items() if (parts, name) in chosen}


def _settings(case: dict[str, Any], parts: int) -> dict[str, dict[str, Any]]:
    settings: dict[str, dict[str, Any]] = {
        "model": {"hidden": 8, "heads": 2},
        "train": {"batch_size": 24 // parts, "fanouts": [3, 3], "threads": 1, "epochs": 1,
                  "dtype": "float64"},
        "run": {"timeout_s": PATIENCE, "verify": False, "prove": "1"}}
    if "train.global_batch_size" in case:
        del settings["train"]["batch_size"]
    for key, value in case.items():
        section, name = key.split(".")
        settings.setdefault(section, {})[name] = value
    return settings


class Draws(HGNNLayer):
    """Draws random numbers where it computes."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__("sum", spec.hidden)

    def aggregate(self, edges: Edges) -> Tensor:
        rows = edges.reduce("mean")
        return rows + torch.rand_like(rows) if self.training else rows


class Step:
    """Receives the events of a training; counts its second step."""

    def __init__(self, name: str) -> None:
        self._ends = {LOST: signal.SIGKILL, ENDED: signal.SIGTERM}.get(name)
        self.losses: list[float] = []
        self.counted: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "step":
            self.losses.append(event["loss"])
            if self._ends and event["step"] == 1:
                os.kill(os.getpid(), self._ends)
            if event["step"] == 2:  # the first one is proved
                self.counted = COUNTS.to_json()
            COUNTS.clear()
        elif event["event"] == "epoch":
            self.seconds = event["seconds"]


def _case(job: dict[str, Any], name: str, base: dict[str, Any]) -> dict[str, Any]:
    store = Store(job["store"])
    settings = load_settings(base=base, environ={})
    plugins = Plugins(job["guests"]).configured(settings)
    out = Path(job["out"]) / f"{job['device']}-{job['parts']}"
    plan, run_dir = _plan(store, settings, job["parts"], out), out / name
    check(store, plan, settings, plugins)
    run_dir.mkdir(parents=True, exist_ok=True)
    found = {}
    step = Step(name)
    for epochs in (1, 2) if name in job["again"] else (1, 1) if name == ENDED else (
            settings.train.epochs,):
        longer = settings.model_copy(update={"train": settings.train.model_copy(
            update={"epochs": epochs})})
        engine = build_engine(store, plan, longer, plugins, run_dir)
        caches.attach(engine, run_dir / "profiles")
        measured = [n for (what, line), n in COUNTS.syncs.items()
                    if what == "Stream.synchronize" and "/penalties.py" in line]
        try:
            summary = train(engine, run_dir, engine.settings, plugins, resume=bool(found),
                            report=step)
        except PreemptedError:
            assert name == ENDED
        if not found or name == ENDED:
            found = {"device": str(engine.device), "source": engine.part.source.name,
                     "kernel": kernel_in_use().name,
                     "proved": engine.proof.proved if engine.proof else 0,
                     "capacity": engine.part.caches.capacity if engine.part.caches else 0,
                     "measured": [hardware(engine.device)["device"], sum(measured)],
                     "told": engine.proof.told if engine.proof else None,
                     "hits": sum(of["hits"] for of in engine.part.caches.counted().values())
                     if engine.part.caches else 0}
    sampled = settings.task.relation is None  # what links need is predicted layer by layer, on CPUs
    return {**found, "losses": step.losses, "counts": step.counted,
            "seconds": step.seconds, "policy": summary["settings"]["cache"]["policy"],
            "scores": [summary["val_acc"], summary["test_acc"]],
            "predicted": _predicted(job, engine, plugins, run_dir) if sampled else []}


def _predicted(job: dict[str, Any], engine: Engine, plugins: Plugins, run_dir: Path
               ) -> list[float]:
    """The scores of all nodes of a target, by all workers."""
    (target, *_), store, settings = engine.plan.targets, engine.store, engine.settings
    written, shape = run_dir / "out.npy", (store.schema.node_counts[target],
                                           engine.spec.num_classes[target])
    if engine.rank == 0:
        np.lib.format.open_memmap(written, "w+", np.float64, shape)
    engine.world.barrier()
    prediction_worker.run({
        "store": job["store"], "plan": _plan(store, settings, job["parts"], run_dir).to_json(),
        "settings": settings.model_dump(), "run_dir": str(run_dir), "out": str(written),
        "ntype": target, "chunk": 64, "what": "scores", "task": settings.task.kind, "time": None,
        "layerwise": False, "model": settings.model.name}, plugins, lambda event: None)
    engine.world.barrier()
    scores: list[float] = np.load(written).ravel().tolist()
    return scores


def _plan(store: Store, settings: Settings, workers: int, out: Path) -> Plan:
    targets = resolve(settings.task, store.manifest.task, store.schema).targets or []
    parts = workers // settings.train.trainers
    if settings.partition.replication == "none":
        return plan_without_replication(store.schema, targets, settings.model.layers, parts,
                                        deal_pieces(True), "test")
    plan = make_plan(store.schema, targets, settings.model.layers, parts)
    if settings.partition.shared == "delegate":
        return delegating(plan, 1, out / f"plan-{os.environ['RANK']}")
    return plan


def work(job: dict[str, Any]) -> None:
    """Run the cases of a job as the worker that RANK names."""
    rank, found = os.environ["RANK"], {}
    os.environ |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}
    if not REAL:
        os.environ["CUDA_VISIBLE_DEVICES"] = job["visible"][int(rank)]
    with contextlib.nullcontext() if REAL or job["device"] == "cpu" else pretend():
        for name, base in job["cases"].items():
            base["train"]["device"] = job["device"]
            COUNTS.problems.clear()
            try:
                found[name] = _case(job, name, base)
            except HetaError as error:
                if job["parts"] > 1 and not isinstance(error, InputError) and name != LOST:
                    raise
                found[name] = {"error": str(error), "status": error.exit_status}
            except BaseException:  # the others wait for this worker in vain, so all end
                traceback.print_exc()
                print("case:", name, [" | ".join(key) for key in COUNTS.problems], flush=True)
                raise
            found[name]["problems"] = [" | ".join(key) for key in COUNTS.problems]
    Path(job["out"], f"{job['device']}-{job['parts']}-{rank}.json").write_text(json.dumps(found))


def main(file: Path) -> int:
    """Run the workers of a job (:mod:`tests.support.copies`)."""
    return fork_all(file, work, until_one_fails=LOST not in json.loads(file.read_text())["cases"])
