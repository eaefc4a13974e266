"""`dgl-heta predict`: from a finished run to a file with a row per node."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dgl_heta.errors import InputError, listing
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.balance import balanced
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.settings import Settings
from dgl_heta.store import Store

KINDS = ("predictions", "scores", "embeddings")
_ROWS = 2**18  # of a Parquet row group


@dataclass(frozen=True)
class PredictRequest:
    """The arguments of `dgl-heta predict`."""

    run_dir: Path
    out: Path
    ntype: str | None = None
    what: str = "predictions"
    parts: int | None = None
    model: str | None = None
    store: Path | None = None
    chunk: int = 8192
    overwrite: bool = False
    quiet: bool = False


def predict_command(request: PredictRequest, registry: Plugins, err: Console) -> dict[str, Any]:
    """Predict as requested; returns a summary.

    Raises
    ------
    InputError
        A run that did not end, a node type that the model says nothing about, an output that
        exists or of an unknown format.
    """
    from dgl_heta.launch.local import launch
    from dgl_heta.models import HGNN
    from dgl_heta.training.checkpoint import read_spec
    from dgl_heta.training.tasks import make_task, resolve

    started = time.perf_counter()
    if request.what not in KINDS:
        raise InputError(f"--what is '{request.what}'; it must be one of {', '.join(KINDS)}")
    if request.out.suffix not in (".npy", ".parquet"):
        raise InputError(f"--out {request.out} must end in .npy or .parquet")
    if request.out.suffix == ".parquet":
        _arrow()
    if request.out.exists() and not request.overwrite:
        raise InputError(f"{request.out} exists; choose another file or ask to overwrite it "
                         "(--overwrite)")
    if request.chunk < 1:
        raise InputError(f"--chunk is {request.chunk}; it must be 1 or more")
    job = _job(request.run_dir)
    settings, store = Settings(**job["settings"]), Store(request.store or job["store"])
    # A plugin of the training alone, such as its partition backend, may be gone by now.
    settings = settings.model_copy(update={"plugins": {
        name: values for name, values in settings.plugins.items() if name in registry.sections()}})
    registry = registry.configured(settings)
    spec, _, provider = read_spec(request.run_dir, registry, request.model)
    if spec.schema != store.schema:
        raise InputError(f"the run in {request.run_dir} was trained on another graph than the one "
                         f"in {store.directory}")
    task = resolve(settings.task, store.manifest.task, store.schema)
    outputs = make_task(store, settings).outputs
    ntype = request.ntype or (task.targets or [""])[0]
    store.schema.check_node_type(ntype)
    if request.what != "embeddings" and (ntype not in outputs or task.kind == "link"):
        raise InputError(f"the model predicts nothing of '{ntype}' by itself; it was trained for "
                         f"{task.kind} of {listing(task.targets or [])}: ask for --what embeddings"
                         + ("" if task.kind == "link" else ", or for one of these types"))
    sampled = Plan.from_json(job["plan"], store.schema, "of this run")
    layerwise = isinstance(provider.build(spec), HGNN) and not sampled.metapaths
    if layerwise:
        plan = _plan(store, ntype, settings, request.parts or settings.partition.parts)
    else:
        plan = sampled
        if request.what == "embeddings" or ntype not in plan.targets:
            raise InputError("this model runs batch by batch, on its targets alone "
                             f"({listing(plan.targets)}); embeddings and other types need a model "
                             "of layers (rgcn, rgat, hgt, han) without metapaths")
    width = (spec.hidden if request.what == "embeddings" else outputs[ntype])
    classes = request.what == "predictions" and task.kind == "classification"
    shape = (store.schema.node_counts[ntype],) if classes else (store.schema.node_counts[ntype],
                                                                width)
    dtype = np.dtype(np.int64 if classes else np.uint8 if (
        request.what == "predictions" and task.kind == "multilabel") else settings.train.dtype)
    request.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{request.out.name[:40]}.",
                                     dir=request.out.parent) as directory:
        scratch = Path(directory).resolve()
        rows = scratch / "rows.npy"
        np.lib.format.open_memmap(rows, "w+", dtype, shape)
        trained = settings.model_copy(update={"train": settings.train.model_copy(
            update={"fanouts": [-1] * settings.model.layers})})
        workers = plan.num_parts if layerwise else plan.num_parts * settings.train.trainers
        with _Bar(err, not request.quiet) as report:
            launch({"predict": True, "settings": trained.model_dump(), "plan": plan.to_json(),
                    "store": str(store.directory.resolve()), "layerwise": layerwise,
                    "run_dir": str(request.run_dir.resolve()), "out": str(rows), "ntype": ntype,
                    "what": request.what, "kind": task.kind, "chunk": request.chunk,
                    "model": request.model, "scratch": str(scratch)}, workers, scratch, report)
        if request.out.suffix == ".parquet":
            _write_parquet(rows, scratch / "rows.parquet", request.what)
            rows = scratch / "rows.parquet"
        rows.replace(request.out)
    return {"out": str(request.out), "ntype": ntype, "what": request.what, "rows": shape[0],
            "width": 1 if len(shape) == 1 else shape[1], "workers": workers,
            "seconds": time.perf_counter() - started}


def _plan(store: Store, ntype: str, settings: Settings, parts: int) -> Plan:
    """A plan with the type as its target; a partition needs a relation into it."""
    into = store.schema.into[ntype]
    if not into:
        raise InputError(f"no relation ends at '{ntype}', so its nodes have no embeddings but "
                         "their input features")
    return make_plan(store.schema, ntype, settings.model.layers, min(parts, len(into)),
                     assign=balanced)


def _job(run_dir: Path) -> dict[str, Any]:
    try:
        job = json.loads((run_dir / "job.json").read_text(encoding="utf-8"))
        return {key: job[key] for key in ("settings", "store", "plan")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run_dir} is not the directory of a run of `dgl-heta train`: "
                         f"{error}") from None


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow, which is not installed; install "
                         "'dgl-heta[parquet]', or write .npy") from None
    return pyarrow


def _write_parquet(rows: Path, out: Path, what: str) -> None:
    """Columns `node` and the values: one, or a list of fixed length."""
    arrow = _arrow()
    array = np.lib.format.open_memmap(rows, "r")
    writer = None
    for low in range(0, max(len(array), 1), _ROWS):
        part = np.ascontiguousarray(array[low:low + _ROWS])
        values = arrow.array(part.ravel())
        if array.ndim == 2:
            values = arrow.FixedSizeListArray.from_arrays(values, array.shape[1])
        table = arrow.table({"node": np.arange(low, low + len(part)), what: values})
        writer = writer or arrow.parquet.ParquetWriter(out, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


class _Bar:
    """A progress bar per layer and node type."""

    def __init__(self, console: Console, show: bool) -> None:
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
                             TimeRemainingColumn(), console=console, transient=True,
                             disable=not (show and console.is_terminal))
        self._tasks: dict[tuple[int, str], Any] = {}

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        self._bar.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _report(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            key = (event["layer"], event["ntype"])
            if key not in self._tasks:
                self._tasks[key] = self._bar.add_task(f"layer {key[0]}, {key[1]}",
                                                      total=event["total"])
            self._bar.update(self._tasks[key], completed=event["done"])
