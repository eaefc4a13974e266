"""From what a user asks for to a trained model: parts, workers, a summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from dgl_heta import InputError
from dgl_heta.tools import (
    Plugins,
    graph_names,
    listing,
    make_request,
    open_input,
    run_workers,
    scratch_directory,
    write_signed,
)
from dgl_heta_catgnn.training.parts import TrainingParts, prepare

Report = Callable[[dict[str, Any]], None]
PROGRAM = "dgl_heta_catgnn.training.worker"


class TrainSettings(BaseModel):
    """The section `[plugins.catgnn]`: what `dgl-heta catgnn train` has no option for."""

    hidden: int = Field(64, ge=1, description="width of hidden states")
    layers: int = Field(2, ge=1, description="layers of the model")
    heads: int = Field(4, ge=1, description="attention heads of gat")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout behind hidden layers")
    lr: float = Field(0.01, gt=0, allow_inf_nan=False, description="learning rate of Adam")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False,
                                description="weight decay of Adam")
    batch_size: int = Field(512, ge=1, description="training nodes of a mini-batch")
    fanouts: list[int] = Field([10, 25], min_length=1, description="neighbours of each layer in a "
                               "mini-batch, the first layer's first; -1 for all; the last one "
                               "is that of further layers, too")
    eval_every: int = Field(1, ge=0, description="epochs between two evaluations, when models are "
                            "averaged; 0: at the end alone")
    threads: int = Field(1, ge=1, description="threads of a worker; from 2 on mini-batches are "
                         "other ones at each run")
    dtype: Literal["float32", "float64"] = Field("float32", description="numbers of the model")
    timeout_s: float = Field(600, gt=0, description="limit of a wait for another worker")


@dataclass(frozen=True)
class TrainRequest:
    """The options of `dgl-heta catgnn train`.

    Attributes
    ----------
    graph : a data set or files as `dgl-heta partition` takes them, or parts that there are: their
        part_config or its directory.
    method : partitioner; None: spring.
    hops : hops of neighbours around a part's own nodes; 0: an edge between parts is in one alone.
    batches : an algorithm of one's own, module:attribute.
    whole : whether models are judged on the whole graph, or on the parts as they are.
    memory : bytes that a worker may use, by estimate; without it all its parts stay in memory.
    verify : compare the files of a store with their checksums, as `run.verify` says.
    """

    graph: str
    model: str = "sage"
    method: str | None = None
    parts: int | str | None = None
    workers: int = 1
    epochs: int = 20
    sync_every: int = 1
    hops: int | None = None
    full_batch: bool = False
    batches: str | None = None
    whole: bool = True
    memory: int | None = None
    seed: int = 0
    target: str | None = None
    run_dir: Path | None = None
    verify: bool = True


def train_graph(request: TrainRequest, settings: TrainSettings, registry: Plugins,
                report: Report = lambda event: None) -> dict[str, Any]:
    """Partition if need be, train on workers of this machine, and return the summary.

    Raises
    ------
    InputError
        What is asked for is wrong.
    HetaError
        A worker failed.
    """
    _check(request, settings)
    run_dir = _run_directory(request)
    with scratch_directory(run_dir, "catgnn") as scratch:
        config, labels, figures = _parts(request, registry, scratch, report)
        report({"event": "preparing"})
        prepared = scratch / "training"
        prepared.mkdir()
        parts = prepare(config, prepared, **labels)
        _check_parts(request, settings, parts)
        job = {"settings": settings.model_dump(), "parts": str(prepared),
               "run_dir": str(run_dir.resolve()), "model": request.model,
               "batches": request.batches, "epochs": request.epochs,
               "sync_every": request.sync_every, "seed": request.seed,
               "full_batch": request.full_batch, "whole": request.whole,
               "full": request.hops != 0, "keep": request.memory is None}
        summary = run_workers(job, request.workers, run_dir, report, PROGRAM)
    nodes = sum(part.nodes for part in parts.parts)
    summary = {"graph": request.graph, "model": request.model, "method": parts.method,
               "parts": len(parts.parts), "hops": parts.hops if request.hops is None
               else request.hops, "replication_factor": nodes / parts.num_nodes, **figures,
               **summary}
    write_signed(run_dir / "summary.json", summary, indent=1)
    return {**summary, "run_dir": str(run_dir)}


def _check(request: TrainRequest, settings: TrainSettings) -> None:
    from dgl_heta_catgnn.training.batches import make_batches
    from dgl_heta_catgnn.training.models import ModelShape, build

    for name in ("workers", "epochs", "sync_every"):
        if (value := getattr(request, name)) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be 1 or more")
    if request.seed < 0:
        raise InputError(f"--seed is {request.seed}; it must be 0 or more")
    if request.hops is not None and request.hops < 0:
        raise InputError(f"--hops is {request.hops}; it must be 0 or more")
    if request.batches and request.full_batch:
        raise InputError("--full-batch and --batches contradict each other; leave one of them out")
    fanouts = settings.fanouts
    many = "fanouts" in settings.model_fields_set and len(fanouts) > settings.layers
    if many or not all(one == -1 or one >= 1 for one in fanouts):
        raise InputError(f"plugins.catgnn.fanouts is {listing(map(str, fanouts))}; it must be -1 "
                         f"(all neighbours), or 1 or more, for each of {settings.layers} layers")
    build(request.model, ModelShape(2, settings.hidden, 2, settings.layers, settings.dropout,
                                    settings.heads))
    make_batches(request.batches, request.full_batch, settings.batch_size, settings.fanouts)


def _check_parts(request: TrainRequest, settings: TrainSettings, parts: TrainingParts) -> None:
    if request.workers > len(parts.parts):
        raise InputError(f"--workers is {request.workers}, but there are {len(parts.parts)} parts; "
                         "give as many workers as parts, or fewer")
    if request.hops and request.hops != parts.hops:
        raise InputError(f"--hops is {request.hops}, but the parts have {parts.hops} hop"
                         f"{'s' * (parts.hops != 1)} of neighbours; leave it out, write parts with "
                         f"{request.hops} (plugins.spring.hops), or let this command make them")


def _run_directory(request: TrainRequest) -> Path:
    given = request.run_dir or Path("runs") / f"catgnn-{time.strftime('%Y%m%d-%H%M%S')}"
    if (given / "summary.json").exists():
        raise InputError(f"{given} holds a run already; choose another directory")
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make run directory {given}: {error.strerror}") from None
    return given


def existing_parts(graph: str) -> Path | None:
    """The part_config that a user names, itself or by its directory; None if it is none."""
    path = Path(graph)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path] if path.is_file() else []
    for file in files:
        if file.suffix == ".json" and '"part_graph"' in file.read_text("utf-8", "replace"):
            return file
    return None


def _labels(request: TrainRequest, opened: Any) -> dict[str, Any]:
    """What :func:`prepare` is told to classify: what the graph's task says, unless that is of
    another type than the request."""
    task = opened.task
    if task is None or request.target not in (None, task.target):
        return {"target": request.target}
    if task.kind != "classification":
        raise InputError(f"the graph's task is {task}, and `dgl-heta catgnn train` trains "
                         "classifications alone; use `dgl-heta train`, or name another node type "
                         "with classes by --target")
    known = opened.source if opened.store is None else opened.store.manifest
    name = graph_names(known, task.target).get(task.label, task.label)
    return {"target": task.target, "labels": (name, task.label), "unlabelled": task.unlabelled}


def _parts(request: TrainRequest, registry: Plugins, scratch: Path, report: Report
           ) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The part_config of the parts to train on, made here unless there is one; what is to be
    classified; figures."""
    config = existing_parts(request.graph)
    if config is not None:
        for name in ("parts", "method"):
            if getattr(request, name) is not None:
                raise InputError(f"--{name} is given, but {request.graph} has parts already; leave "
                                 "it out, or name a graph")
        return config, {"target": request.target}, {}
    opened = open_input(request.graph, registry, request.verify)
    content = opened.store or opened.source
    if content is None:
        raise InputError(f"'{request.graph}' is a schema without edges; name a graph or parts")
    labels = _labels(request, opened)
    if opened.store is not None and request.verify:
        opened.store.verify()
    backend = registry.get("partition backend", request.method or "spring")
    parts = request.workers if request.parts is None else request.parts
    hops = max(request.hops or 1, 1)
    if backend.name == "metis" and hops > 1:
        raise InputError(f"--hops is {hops}, but parts of metis have one hop here; use a stream "
                         "partitioner, or hops 0 or 1")
    asked = make_request(backend, opened.schema, parts, [request.target] if request.target else
                         [opened.target] if opened.target else [], seed=request.seed,
                         memory_mb=request.memory / 1e6 if request.memory and parts == "auto"
                         else None,
                         script={"num_hops": hops} if "num_hops" in backend.honours else {},
                         word=lambda name: f"--{name.replace('_', '-')}")

    def advance(what: str, done: float) -> None:
        report({"event": "partitioning", "what": what, "done": done})

    result = backend.partition(content, asked, scratch / "parts", progress=advance)
    if parts == "auto" and result.parts < request.workers:  # each of which gets one (§3.2)
        fewer = replace(asked, parts=request.workers, memory_limit=None)
        result = backend.partition(content, fewer, scratch / "parts", overwrite=True,
                                   progress=advance)
    estimate = result.statistics.get("estimated_bytes")
    return result.part_config, labels, {"estimated_bytes": max(estimate)} if estimate else {}
