"""Engines whose steps are counted on the pretended device."""

from __future__ import annotations

from pathlib import Path

from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.graph_input import open_input
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.caches import attach
from dgl_heta.training.engine import Engine
from dgl_heta.training.setup import build_engine


def written(graph: str, place: Path) -> Store:
    """A data set as a store."""
    source = open_input(graph, Plugins()).source
    assert source is not None, f"{graph} is not the name of a data set"
    write_store(source, place)
    return Store(place)


def engine_of(store: Store, *settings: str, plan: Plan | None = None,
              scratch: Path | None = None) -> Engine:
    """One worker's engine, with the rows on the device that are there by default."""
    if plan is None:
        task = store.manifest.task
        assert task is not None
        plan = make_plan(store.schema, [task.target], 2, 1)
    chosen = load_settings(None, ["train.device=cuda", "train.threads=1", "run.prove=off",
                                  *settings], {})
    plugins = Plugins().configured(chosen)
    engine = build_engine(store, plan, chosen, plugins, scratch)
    attach(engine)
    engine.start_epoch(1)
    return engine
