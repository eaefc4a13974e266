"""The workers of the exactness tests: they run configurations and write what they computed.

A job is a JSON file {"store", "out", "parts", "meeting", "cases": {name: {"settings",
"metapaths"}}}, with "machines" the name of each worker's by rank. They are forked, so that what
takes longest, importing torch, is done once and not by each.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch._dynamo  # noqa: F401  (every optimizer imports it, which takes seconds)
from safetensors.numpy import save_file

from dgl_heta.comm.machines import VARIABLE
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.cutters import in_degrees
from dgl_heta.planning.hubs import share_hubs
from dgl_heta.planning.making import (
    Deal,
    make_plan,
    plan_without_replication,
    with_ownership,
)
from dgl_heta.planning.metatree import parse_metapaths
from dgl_heta.planning.ownership import Ownership
from dgl_heta.planning.partition_shares import Piece
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.sharing import make_shared_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.training.setup import build_engine
from dgl_heta.training.tasks import NodeStep, resolve

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
                                        deal_pieces(case["cut"]), "test")
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
            outputs = engine.wrapped(batch, engine.inputs(batch, train=True))
            loss, _ = engine.loss(outputs, chosen)
            engine.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            engine.wrapped.after_backward()
            for ntype, out in outputs.items():
                found[f"{step}/{ntype}/logits"] = out.detach().numpy()
                found[f"{step}/{ntype}/own"] = batch.own_seeds[ntype]
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
    directory.mkdir(exist_ok=True)
    plan.save(directory / "plan.json")
    assert Plan.load(directory / "plan.json") == plan
    return plan


def cut_by_array(plan: Plan, store: Store, how: str, directory: Path) -> Plan:
    """The plan read back from files, its relations cut anew.

    `how` is "permuted", for as many destinations at random; "hubs", for the same with the in-edges
    of three nodes of each relation cut at random; or a cutter, as `module:attribute`.
    """
    generator, ownership = np.random.default_rng(5), {}
    source = store.source()
    for relation in plan.schema.relations:
        pieces = {p.index: p.ranges[relation] for p in plan.partitions if relation in p.ranges}
        if not pieces:
            continue
        sizes, hubs = [high - low for low, high in pieces.values()], {}
        degrees = in_degrees(source, relation)
        if how in ("permuted", "hubs"):
            chosen = generator.permutation(np.repeat(np.arange(len(pieces)), sizes))
        else:
            module, _, name = how.partition(":")
            chosen = getattr(importlib.import_module(module), name)().cut(source, relation, sizes)
            hubs = share_hubs(chosen, degrees, sizes, 0.3)
        if how == "hubs":
            for node in np.argsort(-degrees)[:3].tolist():
                ends = np.sort(generator.integers(1, degrees[node], len(pieces) - 1)).tolist()
                bounds = [0, *ends, int(degrees[node])]
                order = generator.permutation(len(pieces)).tolist()
                hubs[node] = [(piece, low, high) for piece, low, high in
                              zip(order, bounds, bounds[1:]) if low < high]
        ownership[relation] = Ownership.of(chosen, relation, plan.schema, list(pieces),
                                           plan.num_parts, "test", degrees, hubs)
    assert ownership
    assert how != "hubs" or all(own.hubs for own in ownership.values())
    directory.mkdir(exist_ok=True)
    with_ownership(plan, ownership).save(directory / "plan.json")
    read = Plan.load(directory / "plan.json")
    assert read.ownership == ownership
    assert not any(p.ranges for p in read.partitions)
    read.verify()
    return read


def deal_pieces(cut: bool | str) -> Deal:
    """Relations in turn to the partitions; with `cut`, every second one is cut in uneven parts."""

    def deal(schema: Schema, relations: Sequence[Relation], parts: int) -> list[list[Piece]]:
        dealt: list[list[Piece]] = [[] for _ in range(parts)]
        for i, relation in enumerate(relations):
            count = schema.node_counts[relation.dst]
            if cut and i % 2:
                bounds = [count * (p + 1) * p // (parts * (parts + 1)) for p in range(parts + 1)]
                for part, low, high in zip(range(parts), bounds, bounds[1:]):
                    dealt[part].append((relation, low, high))
            else:
                dealt[i % parts].append((relation, 0, count))
        return dealt

    return deal


def work(job: dict) -> None:
    """Run the cases of a job as the worker that RANK names."""
    store, plugins = Store(job["store"]), Plugins(job.get("guests", False))
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
