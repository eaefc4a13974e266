"""Does a model of one's own compute on several workers what it computes on one?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, EdgeSource, GraphSource, Task
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.local import run_workers
from dgl_heta.models import find_model, slot
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import Settings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.training.setup import check

TOLERANCE = 1e-9
"""Largest relative difference that is rounding: a few steps in fp64, whose largest are 1e-11."""
BATCH = 25  # seeds of a step; not divisible by 2 or 3, so workers have uneven shares


@dataclass(frozen=True)
class Difference:
    """How far an array of several workers is from that of one, relative to its largest value.

    Attributes
    ----------
    what : loss, output or gradient.
    name : of the parameter or node type.
    relation : whose parameter it is, "" if it is no relation's.
    step : from 0.
    """

    workers: int
    what: str
    name: str
    relation: str
    step: int
    difference: float

    @property
    def differs(self) -> bool:
        """True if it is more than rounding; NaN is."""
        return not self.difference <= TOLERANCE


def check_model(model: str, config: Path | None, overrides: Iterable[str], registry: Plugins,
                workers: Sequence[int] = (2, 3)) -> list[Difference]:
    """Train some steps in fp64 on one worker and on several, and compare.

    The graph is small, made here, with all neighbours: a type without features, a relation inside a
    type, two parallel ones, rows without edges. Parameters are moved away from their beginnings,
    dropout is left out.

    Parameters
    ----------
    model : as for `dgl-heta train --model`.
    config, overrides : settings, of which those of the model and of plugins count.

    Returns
    -------
    All comparisons, in the order of the steps: losses, outputs, gradients per parameter. What is
    wrong with learnable features shows in the steps after.

    Raises
    ------
    InputError
        No such model, a setting that does not fit it, less than two workers to compare with.
    HetaError
        The model failed on a worker.
    """
    if not workers or min(workers) < 2:
        raise InputError("the workers to compare with one are 2 or more")
    given = load_settings(config, [*overrides, f"model.name={model}"])
    registry = registry.configured(given)
    find_model(registry, model)
    differences: list[Difference] = []
    with scratch_directory(None, "dgl-heta-check-model") as scratch:
        write_store(_graph(), scratch / "store")
        store = Store(scratch / "store")
        alone: list[dict[str, np.ndarray]] = []
        for parts in (1, *workers):
            each = _run(store, _settings(given, parts), registry, scratch / str(parts), parts)
            if parts == 1:
                alone = each
            else:
                differences += compare(alone[0], each, store.schema.relations)
    return differences


def _settings(given: Settings, parts: int) -> Settings:
    model = given.model.model_copy(update={"dropout": 0.0, "hidden": min(given.model.hidden, 8)})
    return load_settings(environ={}, base={
        "model": model.model_dump(), "plugins": given.plugins,
        "partition": {"parts": parts},
        "train": {"global_batch_size": BATCH, "fanouts": [-1] * model.layers, "dtype": "float64",
                  "device": "cpu", "threads": 1, "seed_states": given.train.seed_states,
                  "kernel": given.train.kernel},
        "run": {"timeout_s": given.run.timeout_s, "prove": "off"}})


def _run(store: Store, settings: Settings, registry: Plugins, directory: Path, parts: int
         ) -> list[dict[str, np.ndarray]]:
    """Return the arrays that each of so many workers computed."""
    plan = make_plan(store.schema, "paper", settings.model.layers, parts)
    check(store, plan, settings, registry)
    directory.mkdir()
    run_workers({"kind": "check", "settings": settings.model_dump(),
                 "store": str(store.directory), "plan": plan.to_json(),
                 "run_dir": str(directory)}, parts, directory, lambda event: None)
    return [dict(np.load(directory / f"found-{rank}.npz")) for rank in range(parts)]


def compare(one: Mapping[str, np.ndarray], many: Sequence[Mapping[str, np.ndarray]],
            relations: Iterable[Relation]) -> list[Difference]:
    """The differences of what several workers computed from what one did.

    Keys are those of :func:`dgl_heta.training.checked.steps`.
    """
    slots = {slot(r): str(r) for r in relations}
    differences = []
    for key, want in one.items():
        step, what, name = key.split("|", 2)
        if what == "ids":
            continue
        if what == "output":
            ids = f"{step}|ids|{name}"
            row_of = {node: row for row, node in enumerate(one[ids].tolist())}
            order = [row_of[node] for m in many for node in m[ids].tolist()]
            far = _far(np.concatenate([m[key] for m in many]), want[order])
        elif what == "loss":
            far = _far(np.mean([m[key] for m in many], 0), want)
        else:
            far = max(_far(m[key], want) if key in m else math.inf for m in many)
        parts = name.replace("/", ".").split(".")
        relation = next((slots[part] for part in parts if part in slots), "")
        differences.append(Difference(len(many), what, name, relation, int(step), far))
    for key in sorted({key for m in many for key in m} - set(one)):
        step, what, name = key.split("|", 2)
        differences.append(Difference(len(many), what, name, "", int(step), math.inf))
    return differences


def _far(got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != want.shape:
        return math.inf
    if not want.size:
        return 0.0
    # Some gradients are zero but for rounding: a softmax does not see what is added to all.
    far = float(np.abs(got - want).max()) / max(float(np.abs(want).max()), 1e-6)
    return far if far == far else math.inf


def _graph() -> GraphSource:
    """A small graph with what a model can be wrong about."""
    rng = np.random.default_rng(0)
    counts = {"author": 40, "field": 12, "paper": 60}
    ends = (("author", "writes", "paper"), ("paper", "rev-writes", "author"),
            ("field", "has", "paper"), ("paper", "about", "field"),
            ("paper", "cites", "paper"), ("paper", "rev-cites", "paper"))
    edges: dict[Relation, EdgeSource] = {}
    for src, etype, dst in ends:
        # Squared uniforms: a skewed in-degree, with destinations that have no edge.
        to = (rng.random(150) ** 2 * counts[dst]).astype(np.int64)
        edges[Relation(src, etype, dst)] = EdgeArrays(rng.integers(0, counts[src], 150), to)
    return GraphSource(
        "check", counts, edges,
        {"paper": {"feat": rng.standard_normal((60, 7)), "label": rng.integers(0, 4, 60),
                   "train_mask": np.ones(60, bool)},
         "field": {"feat": rng.standard_normal((12, 3))}}, Task("paper", 4))


def to_json(model: str, differences: Sequence[Difference]) -> dict[str, Any]:
    """As `dgl-heta check-model --json` prints it; a difference that is infinite is null."""
    return {"model": model, "exact": not any(d.differs for d in differences),
            "tolerance": TOLERANCE, "comparisons": len(differences),
            "differences": [{
                "workers": d.workers, "step": d.step, "what": d.what, "name": d.name,
                "relation": d.relation or None,
                "difference": d.difference if math.isfinite(d.difference) else None}
                for d in differences if d.differs]}


def verdict(model: str, differences: Sequence[Difference]) -> None:
    """
    Raises
    ------
    HetaError
        Something differs; what does first, and of which relations.
    """
    wrong = [d for d in differences if d.differs]
    if not wrong:
        return
    relations = sorted({d.relation for d in wrong if d.relation})
    of = f" (of relations {', '.join(relations[:6])})" if relations else ""
    raise HetaError(
        f"'{model}' computes something else on {wrong[0].workers} workers than on one: "
        f"{len(wrong)} of {len(differences)} arrays differ{of}; rows must not depend on each "
        "other, and aggregate on its relation alone")
