"""A partition directory: the plan, the store or a pointer to it, and DistDGL's part_config.

It holds `<graph_name>.json` (graph_name, num_parts, node_map, edge_map, ntypes, etypes, part-i),
`plan.json` and `store/`. Nothing is rewritten per partition (docs/format.md).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Schema
from dgl_heta.graph.source import GraphSource
from dgl_heta.partition.part_config import PLAN_FILE, config_name, part_config
from dgl_heta.partition.uploading import uploaded_directory
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store
from dgl_heta.store.builders import ALONE, Builders
from dgl_heta.store.source_checks import check_source
from dgl_heta.store.staged import plan_sum
from dgl_heta.store.store_files import PROFILES_DIR, is_profile, others_in_store
from dgl_heta.store.writer import Progress, fill_store
from dgl_heta.system.atomic_files import failures_told, new_directory
from dgl_heta.system.remote_files import RemotePath, file_path

STORE_DIR = "store"


def write_partition(source: GraphSource | Store, plan: Plan, out: str | Path, *,
                    graph_name: str | None = None, overwrite: bool = False,
                    progress: Progress | None = None, memory_mb: int = 512,
                    edge_ids: bool = False, builders: Builders = ALONE) -> Path:
    """Write a partition directory for a plan; returns the path of its part_config JSON.

    A source is written as a store inside the directory; an existing store is referred to, by
    its relative path, so that the two can be moved together. Several builders write one directory,
    which all of them must see, or to one URL, where each needs room for what it writes.

    Raises
    ------
    InputError
        The plan is for another graph, a name that part_config cannot hold, or as
        :func:`dgl_heta.store.write_store`.
    """
    out = file_path(out)
    if isinstance(source, Store):
        source.check_whole()
        if isinstance(out, RemotePath):
            raise InputError(f"a plan over the store {source.directory} refers to it, so it cannot "
                             f"lie in {out}; give the files that the store was made from")
        schema, name = source.schema, graph_name or source.manifest.name
        store = source.directory.resolve()
        destination = Path(os.path.realpath(out))
        if destination in (store, *store.parents):
            raise InputError(f"the store {source.directory} lies in {out}, which would be "
                             "overwritten; choose another directory for the partition")
        # Relative, so that partition and store can be moved together, or mounted elsewhere.
        location = os.path.relpath(store, destination)
    else:
        check_source(source, encodes=True)
        schema, name, location = source.schema(), graph_name or source.name, STORE_DIR
    if not _same(schema, plan.schema):
        raise InputError("the plan was made for another graph: node types, relations, counts or "
                         "feature sizes differ; make it again with `dgl-heta partition`")
    if builders.size > 1:
        builders.agree({"plan, from its settings or its graph": plan_sum(plan.to_json())})
    config = part_config(plan, name, location)
    file = config_name(name)
    # Written beside and put in place whole: a partition that was interrupted is none.
    if isinstance(out, RemotePath):
        builders = builders.apart()
        new = uploaded_directory(out, PLAN_FILE, overwrite=overwrite, builders=builders)
    else:
        new = _directory_of_all(out, overwrite, builders)
    with new as directory:
        if not isinstance(source, Store):
            (directory / STORE_DIR).mkdir(exist_ok=True)
            fill_store(source, directory / STORE_DIR, memory_mb=memory_mb, edge_ids=edge_ids,
                       progress=progress, builders=builders)
        if builders.rank == 0:
            plan.save(directory / PLAN_FILE)
            (directory / file).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return out / file


@contextmanager
def _directory_of_all(out: Path, overwrite: bool, builders: Builders) -> Iterator[Path]:
    """The new directory that all builders write; the first one makes it, and puts it in place."""
    with ExitStack() as undo:
        def make() -> str:
            return "" if builders.rank else str(undo.enter_context(new_directory(
                out, overwrite=overwrite, kind=PLAN_FILE, others=others_in)))

        def look() -> None:
            if not directory.is_dir():
                raise InputError(f"{out} is not one directory for all workers: {platform.node()} "
                                 "does not see what worker 0 writes there; give a directory that "
                                 "all machines share")

        directory = Path(builders.gather(builders.each(make))[0])
        try:
            builders.each(look)
            with failures_told(directory, out):
                yield directory
        except BaseException:
            # Whoever fails last removes what others wrote while the first one removed it.
            shutil.rmtree(directory, ignore_errors=True)
            raise
        builders.each(undo.close)


def _same(one: Schema, other: Schema) -> bool:
    """Equal, also in the order of types and relations, from which DistDGL's ids follow."""
    return one == other and (one.node_types, one.relations) == (other.node_types, other.relations)


def others_in(directory: Path) -> Iterator[Path]:
    """The entries of a partition directory, staged or not, that dgl-heta does not write there."""
    store = directory / STORE_DIR
    for path in directory.iterdir():
        if path == store and not path.is_symlink() and Store.is_store(path):
            yield from others_in_store(path)
        elif path.name == PROFILES_DIR and path.is_dir() and not path.is_symlink():
            yield from (file for file in path.iterdir() if not is_profile(file))
        elif not (path.is_file() and (path.match("owner-*.npy") or path.name == PLAN_FILE
                                      or (path.suffix == ".json" and is_part_config(path)))):
            yield path


def is_part_config(path: str | Path) -> bool:
    """Return whether a file is the part_config of a partition of dgl-heta."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
        return "dgl_heta_plan" in config["part-0"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def is_partition(path: Path) -> bool:
    """Return whether a directory was written by :func:`write_partition`."""
    return (path / PLAN_FILE).is_file()


def open_partition(path: str | Path, verify: bool = False) -> tuple[Store, Plan]:
    """The store and the plan of a partition directory; `verify` as for :class:`Store`.

    Raises
    ------
    InputError
        Not such a directory, or the plan is for a graph with another schema.
    """
    path = Path(path)
    try:
        plan = Plan.load(path / PLAN_FILE)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"plan {path / PLAN_FILE} is damaged: {error!r}") from None
    config_path = part_config_file(path)
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
        location = config["part-0"]["dgl_heta_store"]
        name = config["graph_name"]
        if not isinstance(location, str) or not isinstance(name, str):
            raise TypeError("dgl_heta_store and graph_name must be text")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"part_config {config_path} is damaged: {error!r}") from None
    if part_config(plan, name, location) != config:
        raise InputError(f"part_config {config_path} was edited: it does not follow from "
                         f"{PLAN_FILE}; make the partition again")
    store = Store(path / location, verify)
    if not _same(store.schema, plan.schema):
        raise InputError(f"the plan in {path} was made for another graph than the store "
                         f"{store.directory}: " + (store.manifest.unlike_given() or (
                             "node types, relations, counts or feature sizes differ")))
    if store.staged is not None and store.staged.plan != plan_sum(plan.to_json()):
        raise InputError(f"{path} was staged by another plan than {path / PLAN_FILE}; stage it "
                         "again")
    return store, plan


def part_config_file(path: Path) -> Path:
    """The part_config of a partition directory.

    Raises
    ------
    InputError
        There is none, or several files could be it.
    """
    configs = [c for c in path.glob("*.json") if c.name != PLAN_FILE]
    if len(configs) != 1:
        raise InputError(f"{path} holds {len(configs)} part_config files beside {PLAN_FILE}; "
                         "there must be one")
    return configs[0]


def write_part_config(directory: Path, plan: Plan, graph_name: str) -> Path:
    """Write the part_config of a plan whose store lies in the same directory, for any other."""
    for config in directory.glob("*.json"):
        if config.name != PLAN_FILE:
            config.unlink()
    file = directory / config_name(graph_name)
    file.write_text(json.dumps(part_config(plan, graph_name, STORE_DIR), indent=1) + "\n", "utf-8")
    return file


def graph_name_of(config: Path) -> str:
    """The name of the graph in a part_config that :func:`open_partition` has read."""
    return str(json.loads(config.read_text("utf-8"))["graph_name"])


def store_of_config(config: Path) -> Path | None:
    """Where the store of a partition is, as its part_config says; None where it cannot be read."""
    try:
        return config.parent / json.loads(config.read_text("utf-8"))["part-0"]["dgl_heta_store"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
