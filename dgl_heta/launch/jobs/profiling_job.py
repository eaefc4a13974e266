"""A profile of a feature cache: what it would be filled by, and what it would save."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.choices import open_for, plan_for
from dgl_heta.launch.local import run_workers
from dgl_heta.store import Store, write_store
from dgl_heta.store.store_files import PROFILES_DIR
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.training.setup import check


def profile_graph(graph: str, config: Path | None, overrides: Iterable[str], registry: Plugins,
                  out: Path | None = None,
                  report: Callable[[dict[str, Any]], None] = lambda event: None
                  ) -> dict[str, Any]:
    """Profile all workers of a training; returns what each of them measured.

    Parameters
    ----------
    out : directory of the profile; default: that of the settings, else with the graph.
    report : gets the events of the first worker.

    Raises
    ------
    InputError
        The graph has no edges, or no directory to keep a profile in.
    HetaError
        A worker failed.
    """
    opened, settings, registry = open_for(graph, config, overrides, registry)
    if opened.store is None and opened.source is None:
        raise InputError(f"'{graph}' is a schema without edges; profile a store, a "
                         "partition, a directory of edge files or a data set")
    named = settings.cache.profile
    if out is not None and named and Path(named) != out:
        raise InputError(f"--out is {out}, but cache.profile is {named}; leave one of them out")
    out = out or (Path(named) if named else None)
    settings = settings.model_copy(
        update={"cache": settings.cache.model_copy(update={"profile": None})})
    plan = plan_for(opened, settings, registry)
    if opened.store is None and out is None:
        raise InputError(f"'{graph}' has no directory to keep a profile in; write a store "
                         f"with `dgl-heta partition {graph} --out DIR`, or give --out")
    with scratch_directory(_new_file(out), "dgl-heta-profile") as scratch:
        store = opened.store
        if store is None:
            assert opened.source is not None
            write_store(opened.source, scratch / "store")
            store = Store(scratch / "store")
        check(store, plan, settings, registry)
        if settings.run.verify:
            plan.verify()
            store.verify({t for p in plan.partitions for t in p.node_types},
                         {r for p in plan.partitions for r in p.relations})
        directory = out if out is not None else (
            Path(graph) if opened.plan is not None else store.directory) / PROFILES_DIR
        job = {"kind": "profile", "settings": settings.model_dump(),
               "store": str(store.directory.resolve()), "plan": plan.to_json(),
               "run_dir": str(scratch), "profiles": str(directory.resolve())}
        workers = plan.num_parts * settings.train.trainers
        run_workers(job, workers, scratch, report)
        measured = [json.loads((scratch / f"profile-{rank}.json").read_text("utf-8"))
                    for rank in range(workers)]
    return {"graph": graph, "directory": str(directory), "workers": measured}


def _new_file(out: Path | None) -> Path | None:
    """A directory on a disk for tables of which misses are timed."""
    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HetaError(f"cannot make {out}: {error.strerror}") from None
    return out
