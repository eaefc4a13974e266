"""A prediction: from a finished run to a file with a row per node."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.readers.times import read_instant
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.launch.local import run_workers
from dgl_heta.models import HGNN
from dgl_heta.models.link_model import without_decoder
from dgl_heta.planning.dealing import balanced
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.prediction.output import Output, arrow
from dgl_heta.settings import Settings, TaskSettings
from dgl_heta.store import Store
from dgl_heta.system.checksums import read_signed
from dgl_heta.system.disk import new_array, sync_directory, sync_file
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.training.per_class import class_names
from dgl_heta.training.recorded import recorded_settings
from dgl_heta.training.tasks import resolve
from dgl_heta.training.trained_model import check_weights, read_spec

KINDS = ("predictions", "probabilities", "scores", "embeddings")
ENDINGS = (".npy", ".csv", ".parquet")


@dataclass(frozen=True)
class PredictionJob:
    """A prediction to make with a run; the fields are the options of `dgl-heta predict`."""

    run_dir: Path
    out: Path
    ntype: str | None = None
    what: str = "predictions"
    parts: int | None = None
    model: str | None = None
    store: Path | None = None
    chunk: int = 8192
    overwrite: bool = False
    time: str | None = None

    def run(self, registry: Plugins,
            report: Callable[[dict[str, Any]], None] = lambda event: None) -> dict[str, Any]:
        """Predict; returns a summary. Its `not_finite` is the number of rows that are NaN or
        infinite, or say nothing because the model's outputs are.

        Raises
        ------
        InputError
            A run that did not end, a node type that the model says nothing about, an output
            that exists or of an unknown format.
        """
        started = time.perf_counter()
        self._check()
        recorded = _recorded(self.run_dir)
        settings = recorded_settings(recorded["settings"], self.run_dir / "job.json")
        store = Store(self.store or recorded["store"])
        # A plugin of the training alone, such as its partition backend, may be gone by now.
        settings = settings.model_copy(update={"plugins": {
            name: values for name, values in settings.plugins.items()
            if name in registry.sections()}})
        registry = registry.configured(settings)
        spec, _, provider = read_spec(self.run_dir, registry, self.model)
        if not (self.run_dir / "summary.json").exists():  # model.json may be of before a resume
            raise InputError(f"the run in {self.run_dir} did not end; go on with it first: "
                             f"`dgl-heta train … --resume --run-dir {self.run_dir}`")
        settings = self._of_model(settings, provider)
        check_weights(self.run_dir)
        if (spec.schema, recorded["graph"]) != (store.schema, store.manifest.checksum):
            raise InputError(f"the run in {self.run_dir} was trained on another graph than the "
                             f"one in {store.directory}")
        task = resolve(settings.task, store.manifest.task, store.schema)
        moment = None if self.time is None else read_instant(self.time, "--time")
        store.check_time(moment)
        widths = dict(spec.num_classes)
        ntype = self._node_type(store, task, widths, report)
        output = self._output(store, task, ntype)
        sampled = Plan.from_json(recorded["plan"], store.schema, "of this run")
        model = without_decoder(provider.build(spec))
        layerwise = isinstance(model, HGNN) and not sampled.metapaths
        plan = (self._layerwise_plan(store, ntype, settings) if layerwise
                else self._sampled_plan(sampled, ntype))
        if settings.run.verify:
            plan.verify()
            for text in store.verify({t for p in plan.partitions for t in p.node_types},
                                     {r for p in plan.partitions for r in p.relations}):
                report({"event": "note", "text": text})
        workers = plan.num_parts * (1 if layerwise else settings.train.trainers)
        width = spec.hidden if self.what == "embeddings" else widths[ntype]
        classes = self.what == "predictions" and task.kind == "classification" and not output.best
        count = store.schema.node_counts[ntype]
        shape = (count,) if classes else (count, width)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(self.out.parent.resolve(), self.out.name) as scratch:
            rows = scratch / "rows.npy"
            what = "scores" if output.best else self.what
            new_array(rows, _dtype(what, task, settings), shape)
            everything = settings.model_copy(update={"train": settings.train.model_copy(
                update={"fanouts": [-1] * settings.model.layers})})
            done = run_workers({"kind": "predict", "settings": everything.model_dump(),
                    "plan": plan.to_json(), "store": str(store.directory.resolve()),
                    "layerwise": layerwise, "run_dir": str(self.run_dir.resolve()),
                    "out": str(rows), "ntype": ntype, "what": what, "task": task.kind,
                    "chunk": self.chunk, "time": moment, "model": self.model,
                    "scratch": str(scratch)},
                   workers, scratch, report)
            if self.out.suffix == ".parquet":
                output.write_parquet(rows, scratch / "rows.parquet")
                rows = scratch / "rows.parquet"
            elif self.out.suffix == ".csv":
                output.write_csv(rows, scratch / "rows.csv")
                rows = scratch / "rows.csv"
            sync_file(rows)
            rows.replace(self.out)
            sync_directory(self.out.parent)
        return {"out": str(self.out), "ntype": ntype, "what": self.what, "rows": count,
                "not_finite": done["not_finite"], "later": _later(store, ntype, moment),
                "named": classes and bool(output.classes),
                "width": 1 if classes or output.best else width, "workers": workers,
                "seconds": time.perf_counter() - started}

    def _check(self) -> None:
        """Find what is wrong without reading the run."""
        if self.what not in KINDS:
            raise InputError(f"--what is '{self.what}'; it must be one of {', '.join(KINDS)}")
        if self.out.suffix not in ENDINGS:
            raise InputError(f"--out {self.out} must end in .npy, .csv or .parquet")
        if self.out.suffix == ".parquet":
            arrow()
        if self.out.exists() and not self.overwrite:
            raise InputError(f"{self.out} exists; choose another file or ask to overwrite it "
                             "(--overwrite)")
        if self.chunk < 1:
            raise InputError(f"--chunk is {self.chunk}; it must be 1 or more")

    def _of_model(self, settings: Settings, provider: ModelProvider) -> Settings:
        """The settings with the model that the user named, or that model.json names, which is
        checked: no file says which code to import."""
        recorded = settings.model.name
        if self.model is None and recorded != provider.name:
            raise InputError(f"{self.run_dir}/job.json names the model '{recorded[:80]}', but "
                             f"model.json names '{provider.name}': the run is damaged; if it was "
                             "trained with a model of your own, say so with --model")
        return settings.model_copy(update={
            "model": settings.model.model_copy(update={"name": self.model or provider.name}),
            "task": settings.task.model_copy(update={"links": None})})  # all edges carry messages

    def _node_type(self, store: Store, task: TaskSettings, widths: dict[str, int],
                   report: Callable[[dict[str, Any]], None]) -> str:
        ntype: str = self.ntype or (task.targets or [""])[0]
        store.schema.check_node_type(ntype)
        if self.what != "embeddings" and (ntype not in widths or task.kind == "link"):
            other = "" if task.kind == "link" else ", or for one of these types"
            raise InputError(f"the model predicts nothing of '{ntype}' by itself; it was trained "
                             f"for {task.kind} of {listing(task.targets or [])}: ask for --what "
                             f"embeddings{other}")
        if ntype not in widths:
            report({"event": "note", "text": "the model was trained for "
                    f"{listing(task.targets or [])}: what its last layer has for '{ntype}' alone "
                    "is as it was drawn at the start"})
        return ntype

    def _output(self, store: Store, task: TaskSettings, ntype: str) -> Output:
        """Return the form of the output: whose the rows are, and what the classes are called."""
        if self.what == "probabilities" and task.kind not in ("classification", "multilabel"):
            raise InputError(f"--what probabilities is for classes; the model was trained for "
                             f"{task.kind}: ask for predictions or scores")
        ids = store.ids(ntype)
        names = class_names(store, ntype, task)
        best = (self.what == "predictions" and task.kind == "classification"
                and (self.out.suffix == ".csv" or (self.out.suffix == ".parquet" and bool(ids))))
        return Output(self.what, ids, names if self.what != "embeddings" else [], best)

    def _layerwise_plan(self, store: Store, ntype: str, settings: Settings) -> Plan:
        """A plan with the type as its target; a partition needs a relation into it."""
        into = store.schema.into[ntype]
        if not into:
            raise InputError(f"no relation ends at '{ntype}', so its nodes have no embeddings but "
                             "their input features")
        parts = min(self.parts or settings.partition.parts, len(into))
        return make_plan(store.schema, ntype, settings.model.layers, parts, assign=balanced)

    def _sampled_plan(self, plan: Plan, ntype: str) -> Plan:
        """The run's own plan, for a model that runs batch by batch."""
        if self.what == "embeddings" or ntype not in plan.targets:
            raise InputError("this model runs batch by batch, on its targets alone "
                             f"({listing(plan.targets)}); embeddings and other types need a model "
                             "of layers (rgcn, rgat, hgt, han) without metapaths")
        if self.parts not in (None, plan.num_parts):
            raise InputError(f"--parts is {self.parts}, but this model runs batch by batch, on the "
                             f"{plan.num_parts} partitions of its training; leave it out")
        return plan


def _dtype(what: str, task: TaskSettings, settings: Settings) -> np.dtype[Any]:
    """Of the rows: classes, bits of labels, or the model's own numbers."""
    if what == "predictions" and task.kind == "classification":
        return np.dtype(np.int64)
    if what == "predictions" and task.kind == "multilabel":
        return np.dtype(np.uint8)
    return np.dtype(settings.train.dtype)


def _later(store: Store, ntype: str, time: int | None) -> int:
    """How many nodes of a type there are only after a time; of millions without their ids."""
    times = None if time is None else store.row_times(ntype)
    return 0 if times is None else int(np.count_nonzero(times > time))


def _recorded(run_dir: Path) -> dict[str, Any]:
    """The job that a training left in its run directory."""
    file = run_dir / "job.json"
    if not file.is_file():
        raise InputError(f"{run_dir} is not the directory of a run of `dgl-heta train`: it has no "
                         "job.json")
    job = read_signed(file, "resume the run to write it again")
    if not (isinstance(job.get("settings"), dict) and isinstance(job.get("store"), str)
            and isinstance(job.get("plan"), dict) and isinstance(job.get("graph"), str)):
        raise InputError(f"{file} is not of a run of `dgl-heta train`: it says no settings, store, "
                         "graph and plan")
    return job
