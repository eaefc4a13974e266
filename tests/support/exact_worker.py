"""The workers of the exactness tests: they run configurations and write what they computed.

A job is a JSON file {"store", "out", "parts", "meeting", "cases": {name: {"settings",
"metapaths"}}}, with "machines" the name of each worker's by rank. They are forked, so that what
takes longest, importing torch, is done once and not by each.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch._dynamo  # noqa: F401  (every optimizer imports it, which takes seconds)
from safetensors.numpy import save_file

from dgl_heta.comm.machines import VARIABLE
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.metatree import parse_metapaths
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.sharing import make_shared_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.training.setup import build_engine
from dgl_heta.training.tasks import NodeStep, resolve
from tests.support.cuts import cut_by_array, deal_pieces

EPOCHS = 2


def run_case(store: Store, case: dict, parts: int, plugins: Plugins, scratch: Path,
             steps_of: int | None, steps: int) -> dict[str, np.ndarray]:
    """So many steps in each of two epochs, the last with seeds that do not divide by the workers;
    `steps_of` is how many seeds of a step are left."""
    settings = load_settings(base=case["settings"], environ={})
    targets = resolve(settings.task, store.manifest.task, store.schema).targets or []
    metapaths = (parse_metapaths(case["metapaths"], store.schema) if case.get("metapaths")
                 else None)
    parts //= settings.train.trainers
    if case.get("cut") is not None:
        plan = plan_without_replication(store.schema, targets, settings.model.layers, parts,
                                        deal_pieces(case["cut"], case.get("drawn")), "test")
        if isinstance(case["cut"], str):
            plan = cut_by_array(plan, store, case["cut"],
                                scratch.parent / f"plan-{os.environ['RANK']}")
    else:
        plan = make_plan(store.schema, targets, settings.model.layers, parts, metapaths)
        if case["shared"]:
            first = plan.sub_metatrees[0].root
            plan = make_shared_plan(store.schema, targets, settings.model.layers, parts, metapaths,
                                    lambda plan, part: sum(
                                        (99 if relation == first else 1) * share.width / share.count
                                        for relation, share in plan.roots(part.index).items()),
                                    "shared")
            assert any(s.count > 1 for p in plan.partitions for s in p.sub_metatrees.values())
    if case.get("delegate") is not None:
        plan = delegating(plan, case["delegate"],
                          scratch.parent / f"plan-{os.environ['RANK']}")
    engine = build_engine(store, plan, settings, plugins.configured(settings), scratch)
    found: dict[str, np.ndarray] = {}
    step = 0
    for epoch in range(EPOCHS):
        engine.start_epoch(epoch)
        batches = engine.steps("train", epoch)
        for chosen in [*batches[:steps - 1], batches[-1]]:
            if steps_of is not None:
                chosen = NodeStep({t: ids[:steps_of] for t, ids in chosen.nodes.items()})
            batch = engine.sample(chosen, step)
            outputs = engine.distributed(batch)
            loss, _ = engine.loss(outputs, chosen)
            engine.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for ntype, out in outputs.items():
                found[f"{step}/{ntype}/logits"] = out.detach().numpy()
                own = batch.seeds[ntype]
                found[f"{step}/{ntype}/own"] = own if own.ndim == 1 else own @ [1, 1 << 32]
            found[f"{step}/loss"] = np.asarray(float(loss.detach()))
            for name, parameter in engine.model.named_parameters():
                if parameter.grad is not None:
                    found[f"{step}/grad/{name}"] = parameter.grad.numpy().copy()
            engine.optimizer.step()
            engine.learnable.update()
            step += 1
    for name, parameter in engine.model.named_parameters():
        found[f"parameter/{name}"] = parameter.detach().numpy()
    for ntype, (low, rows) in engine.learnable.shards().items():
        found[f"rows/{ntype}/{low}"] = rows.numpy()
    found |= {f"sent/{cause}": np.asarray(size) for cause, size in engine.sent.items()}
    found["val"] = np.asarray(engine.evaluate("val"))
    return found


def delegating(plan: Plan, first: int, directory: Path) -> Plan:
    """The plan, read back from a file, with all learnable types dealt to partitions in turn."""
    types = plan.shared_learnable()
    assert types
    plan = plan.with_owners({t: (first + i) % plan.num_parts for i, t in enumerate(types)})
    directory.mkdir(parents=True, exist_ok=True)
    plan.save(directory / "plan.json")
    assert Plan.load(directory / "plan.json") == plan
    return plan


def work(job: dict) -> None:
    """Run the cases of a job as the worker that RANK names."""
    store, plugins = Store(job["store"]), Plugins(job.get("guests", False))
    if job.get("operators"):  # of `merged`, as elsewhere than on CPU
        import dgl_heta_hifuse.kernel

        dgl_heta_hifuse.kernel.COMPILES = False
        dgl_heta_hifuse.kernel.MergedKernel.prepare = lambda *_: None
    for name, case in job["cases"].items():
        results = run_case(store, case, job["parts"], plugins,
                           Path(job["out"]) / f"averages-{job['parts']}-{name}",
                           job.get("steps_of"), job["steps"])
        save(Path(job["out"]) / f"{name}-{job['parts']}-{os.environ['RANK']}", results)


def save(file: Path, results: dict[str, np.ndarray]) -> None:
    """Write what a worker computed; thousands of arrays, which take long as an .npz."""
    save_file({key: np.array(array, order="C") for key, array in results.items()}, file)


def fork(job: dict, rank: int, work: Callable[[dict], None]) -> int:
    """Start a worker; returns its process id."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.environ["RANK"] = str(rank)
        if "machines" in job:
            os.environ[VARIABLE] = job["machines"][rank]
        work(job)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    # As the real workers end: a process group's threads can abort an ordinary exit.
    os._exit(status)


def fork_all(file: Path, work: Callable[[dict], None], until_one_fails: bool = True) -> int:
    """Run all workers of a job; the exit status is 1 if one fails, at once by default."""
    job = json.loads(file.read_text())
    os.environ |= {"WORLD_SIZE": str(job["parts"]), "DGL_HETA_RENDEZVOUS": job["meeting"]}
    running = {fork(job, rank, work) for rank in range(job["parts"])}
    failed = 0
    while running and not (failed and until_one_fails):
        pid, status = os.wait()
        running.remove(pid)
        failed |= status != 0
    return failed


def main(file: Path) -> int:
    """Run the workers of a job (:mod:`tests.support.copies`)."""
    return fork_all(file, work)
