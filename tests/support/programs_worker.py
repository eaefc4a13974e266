"""One trainer of :mod:`tests.support.programs`: runs programs and writes what they record."""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import os
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import numpy as np
import torch
import torch._dynamo  # every optimizer imports it, which takes seconds
import torch.distributed as dist
from dgl.distributed import role
from torch import Tensor, nn

import dgl_heta
from dgl_heta.distdgl.loading.step_plan import step_sizes
from dgl_heta.distdgl.session import Session, open_session
from dgl_heta.distdgl.state import selected
from dgl_heta.features.deferred import lazy_rows
from dgl_heta.hooks.manager import plugins
from tests.support.copies import print_to, write
from tests.support.dist_reference import whole_graph
from tests.support.pretended import dgl_graphs, pretend
from tests.support.pretended.counts import COUNTS

Batch = tuple[dict[str, Tensor], dict[str, Tensor], list[Any]]


@dataclass(frozen=True)
class Facts:
    """What a model must know of the graph: nodes and width of the features per node type (those
    without features are not there), and the relations."""

    counts: dict[str, int]
    widths: dict[str, int]
    etypes: list[tuple[str, str, str]]
    classes: int = 4


class Graph:
    """What stands in for the DistGraph: the loaders ask it for its session, and DGL's collators for
    its types."""

    def __init__(self, session: Session, whole: Any = None) -> None:
        self.heta, self._whole = session, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


class Trainer:
    """What a program is given.

    Attributes
    ----------
    rank, world : of this trainer.
    partners : ranks of the trainers of its group under RAF, its own first.
    raf : whether dgl-heta runs it, for what must differ between the two ways.
    facts : of the graph.
    nodes : this trainer's nodes to train on, of type "paper".
    session : dgl-heta's; None by plain DGL.
    device : where modules and blocks are, and ids, features and labels are given.
    """

    def __init__(self, rank: int, job: dict[str, Any], graph: Any) -> None:
        self.rank, self.world, self.raf = rank, job["world"], job["raf"]
        self.device = torch.device("cuda", rank) if job["pretended"] else torch.device("cpu")
        self._nudge = job["nudge"]
        self.partners = [rank, *(r for r in range(rank % job["trainers"], self.world,
                                                  job["trainers"]) if r != rank)]
        self.whole = graph
        widths = {t: self.whole.nodes[t].data["feat"].shape[1] for t in self.whole.ntypes
                  if "feat" in self.whole.nodes[t].data}
        self.facts = Facts({t: self.whole.num_nodes(t) for t in self.whole.ntypes}, widths,
                           list(self.whole.canonical_etypes))
        train = self.whole.nodes["paper"].data["train_mask"].bool().nonzero()[:, 0]
        self.nodes = train[rank::self.world]
        self.session: Session | None = None
        if self.raf:
            self.session = open_session(job["part_config"], rank // job["trainers"], selected(),
                                        plugins())
        self.found: dict[str, np.ndarray] = {}

    def loader(self, batch_size: int = 12, layers: int = 2, nodes: Tensor | None = None,
               fanouts: list[Any] | None = None, sampler: Any = None) -> Any:
        """Batches of this trainer's nodes, or of others, with all their neighbours, with `fanouts`
        of 0 and -1, or as another sampler gives them."""
        chosen = self.nodes if nodes is None else nodes
        sampler = sampler or dgl.dataloading.NeighborSampler(
            [-1] * layers if fanouts is None else fanouts)
        if self.session is None:
            return _PlainLoader(self, chosen, batch_size, sampler)
        loader = dgl.dataloading.DistNodeDataLoader(
            Graph(self.session, self.whole), {"paper": chosen}, sampler, batch_size=batch_size)
        return loader if self.device.type == "cpu" else _Moving(loader, self.device)

    def features(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the types that have features, fp64; they wait under RAF, as in scripts."""
        ids = {t: i.cpu() for t, i in ids.items()}
        return {t: rows.to(self.device) for t, rows in self._features(ids).items()}

    def _features(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.session is None or not self.session.settings.train.lazy_features:
            return {t: self.whole.nodes[t].data["feat"][ids[t]].double()
                    for t in self.facts.widths}
        rows = {}
        for t in self.facts.widths:
            waiting = lazy_rows(self.session.store.array(t, "feat"), ids[t].numpy())
            assert waiting is not None
            array = self.session.store.array(t, "feat")
            self.session.scope.read(waiting, ids[t], lambda i, of=array: torch.from_numpy(
                of[i.numpy()]))  # as DistTensor's patched reads do
            rows[t] = waiting.double()
        return rows

    def labels(self, seeds: dict[str, Tensor]) -> Tensor:
        return self.whole.nodes["paper"].data["labels"][seeds["paper"].cpu()].long().to(self.device)

    def parallel(self, net: nn.Module, **options: Any) -> nn.Module:
        """DistributedDataParallel; the module's parameters become fp64."""
        net = net.double().to(self.device)
        if self._nudge:
            other = torch.Generator().manual_seed(len(self.found))
            for parameter in net.parameters():
                noise = torch.randn(parameter.shape, generator=other, dtype=torch.float64)
                parameter.data.mul_(1 + self._nudge * noise)
        if self.world == 1:
            return net
        return nn.parallel.DistributedDataParallel(
            net, **{"find_unused_parameters": True, **options})

    def record(self, name: str, value: Tensor, ids: Tensor | None = None) -> None:
        """Keep a value to compare; with `ids` row by row by these. A name twice is two values."""
        names = itertools.chain([name], (f"{name} ({i})" for i in itertools.count(2)))
        key = next(n for n in names if n not in self.found)
        self.found[key] = value.detach().cpu().numpy().copy()
        if ids is not None:
            assert len(ids) == len(value), (name, len(ids), len(value))
            self.found[f"{key}#ids"] = ids.cpu().numpy().copy()

    def gradients(self, net: nn.Module) -> None:
        """Keep the gradients of a module's parameters, and which have none."""
        for name, parameter in getattr(net, "module", net).named_parameters():
            if parameter.grad is not None:
                self.record(f"gradient of {name}", parameter.grad.to_dense())

    def parameters(self, net: nn.Module) -> None:
        """Keep a module's parameters."""
        for name, parameter in getattr(net, "module", net).named_parameters():
            self.record(f"parameter {name}", parameter)


class _Moving:
    """Batches of a loader, on a device, as scripts move them."""

    def __init__(self, loader: Any, device: torch.device) -> None:
        self._loader, self._device = loader, device

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        for ids, seeds, blocks in self._loader:
            yield ({t: i.to(self._device) for t, i in ids.items()},
                   {t: i.to(self._device) for t, i in seeds.items()},
                   [block.to(self._device) for block in blocks])


class _PlainLoader:
    """The same batches of plain DGL."""

    def __init__(self, trainer: Trainer, nodes: Tensor, batch_size: int, sampler: Any) -> None:
        counts: list[Any] = [None] * trainer.world
        dist.all_gather_object(counts, len(nodes))
        self._sizes = step_sizes(counts, batch_size, False)[trainer.rank]
        self._nodes, self._graph, self._sampler = nodes, trainer.whole, sampler

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Batch]:
        for seeds in self._nodes.split(self._sizes):
            yield self._sampler.sample_blocks(self._graph, {"paper": seeds})


torch.set_num_threads(1)
GRAPHS = [whole_graph(), whole_graph(rare=True)]


def main(file: Path) -> int:
    """Prepare what a job's trainers have in common, and let each be a copy of this process."""
    job = json.loads(file.read_text())
    if job["raf"]:
        role.get_num_trainers = lambda: job["world"]
        dgl_heta.enable(settings=job["settings"])
        for name in job["sabotage"]:
            getattr(importlib.import_module("tests.support.sabotage"), name)()
    for name in {program.partition(":")[0] for program in job["programs"]}:
        importlib.import_module(name)
    trainers = []
    for rank in range(job["world"]):
        process = os.fork()
        if not process:
            os.environ |= {"CUDA_VISIBLE_DEVICES": "0,1"} if job["pretended"] else {}
            with pretend() if job["pretended"] else nullcontext():
                _be_trainer(job, rank)
        trainers.append(process)
    for _ in trainers:
        _, status = os.wait()
        if status:
            return 1  # the others are ended with the process group
    return 0


def _be_trainer(job: dict[str, Any], rank: int) -> None:
    """Run all programs, and end the process."""
    print_to(Path(job["out"]) / f"log-{rank}")
    if job["pretended"]:
        dgl_graphs.pretend()
        torch.cuda.set_device(rank)
    status = 1
    try:
        store = dist.TCPStore("127.0.0.1", job["port"], is_master=False)
        for number in range(len(job["programs"])):
            # Who waits for whom, if a trainer is about to give up.
            faulthandler.dump_traceback_later(0.9 * job["timeout_s"])
            together = dist.PrefixStore(f"program {number}", store)
            dist.init_process_group("gloo", store=together, rank=rank, world_size=job["world"],
                                    timeout=timedelta(seconds=job["timeout_s"]))
            _run(job, number, rank)
            _meet(store, number, job["world"])  # not by the group: an error may leave others in it
            dist.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of a process group can hang an ordinary exit


def _run(job: dict[str, Any], number: int, rank: int) -> None:
    """Run a program, and write what it found."""
    program: str = job["programs"][number]
    name, _, argument = program.partition(" ")
    module, _, function = name.partition(":")
    trainer = Trainer(rank, job, GRAPHS[job["rare"]])
    torch.manual_seed(zlib.crc32(program.encode()))
    began, error = time.monotonic(), None
    try:
        arguments = [json.loads(argument)] if argument else []
        getattr(importlib.import_module(module), function)(trainer, *arguments)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
        if job["trace"]:
            traceback.print_exc()
    if COUNTS.problems and error is None:
        error = "; ".join(" | ".join(key) for key in COUNTS.problems)
    COUNTS.problems.clear()
    stem = Path(job["out"]) / f"{number}-{rank}"
    np.savez(f"{stem}.npz", **{f"{i}": value for i, value in enumerate(trainer.found.values())})
    text = json.dumps({"error": error, "names": list(trainer.found),
                       "seconds": time.monotonic() - began})
    write(Path(f"{stem}.json"), text)


def _meet(store: Any, number: int, world: int) -> None:
    """Wait for the other trainers."""
    place = store.add(f"done {number}", 1)
    if place == world:
        store.set(f"all done {number}", "1")
    store.wait([f"all done {number}"], timedelta(seconds=600))
