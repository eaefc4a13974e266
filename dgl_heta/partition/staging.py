"""Staging: a directory for a machine with what its partitions read, and nothing else.

It is a partition directory whose store is staged (:mod:`dgl_heta.store.staged`): files of the
relations and node types of these partitions, with labels and masks of the target types, whose seeds
all machines know. :mod:`dgl_heta.partition.staged_directory` says how it comes into being.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.directory import (
    STORE_DIR,
    graph_name_of,
    open_partition,
    part_config_file,
    store_of_config,
    write_part_config,
)
from dgl_heta.partition.part_config import PLAN_FILE
from dgl_heta.partition.staged_directory import (
    Progress,
    bytes_in,
    finish,
    is_staged,
    receiving,
)
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store
from dgl_heta.store.builders import ALONE, Builders
from dgl_heta.store.manifest import FILE_NAME as MANIFEST_FILE
from dgl_heta.store.manifest import ArrayEntry, Manifest, RelationEntry
from dgl_heta.store.staged import Pieces, Staged, pieces_of, pieces_sum, plan_sum
from dgl_heta.system.checksums import file_sum
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.system.remote_files import RemotePath, blocks, is_remote


@dataclass(frozen=True)
class Staging:
    """Files of a partition directory that some of its partitions read.

    Attributes
    ----------
    source : the partition directory, by its path or URL.
    store, plan : of it; of a store elsewhere only what says what is in it.
    files : the store's files, wherever they are.
    staged : which files, without checksums of pieces.
    whose : file → the relation or node type that it is of.
    also : relations and node types that are staged beside those of the partitions, by name.
    """

    source: str
    graph_name: str
    store: Store
    plan: Plan
    files: Path
    staged: Staged
    whose: dict[str, str]
    also: tuple[str, ...] = ()

    @classmethod
    def of(cls, partition: OpenedPartition, parts: Sequence[int] | None = None,
           also: Sequence[str] = ()) -> Staging:
        """Collect the files that partitions (default: all) read.

        Parameters
        ----------
        also : relations (`src:etype:dst`) and node types beside theirs, such as a relation whose
            edges are predicted.

        Raises
        ------
        InputError
            No such partition, relation or node type.
        """
        source, store, plan = partition.name, partition.store, partition.plan
        chosen = tuple(sorted(set(range(plan.num_parts) if parts is None else parts)))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < plan.num_parts:
            raise InputError(f"--part is {', '.join(map(str, chosen)) or 'missing'}; {source} has "
                             f"partitions 0 to {plan.num_parts - 1}")
        files, whose = _files(store, plan, chosen, *_also(store, also))
        return cls(source, partition.graph_name, store, plan, partition.files, Staged(
            chosen, plan.num_parts, plan_sum(plan.to_json()),
            store.manifest.checksum, files), whose, tuple(also))

    @property
    def entries(self) -> list[ArrayEntry]:
        return [e for e in self.store.manifest.entries() if e.file in self.staged.files]

    @property
    def bytes(self) -> int:
        """Bytes of all files of the store that are staged."""
        return sum(map(self.staged.bytes_of, self.entries))

    def by_name(self) -> dict[str, int]:
        """Bytes for each relation and node type."""
        sizes: dict[str, int] = {}
        for entry in self.entries:
            name = self.whose[entry.file]
            sizes[name] = sizes.get(name, 0) + self.staged.bytes_of(entry)
        return sizes

    def write(self, out: Path, *, overwrite: bool = False,
              progress: Progress = lambda what, done: None) -> bool:
        """Copy the files into a directory; returns False where they are there already.

        Raises
        ------
        InputError
            `out` is something else; a file of the source is damaged.
        HetaError
            The disk is full, a file cannot be read or written. What was copied stays for the next
            call.
        """
        if is_staged(out, self.staged, compare=overwrite):
            return False
        with receiving(out, overwrite) as work:
            self._check_room(work)
            copied, total = 0, max(self.bytes, 1)
            pieces: dict[str, Pieces | None] = {}
            for entry in self.entries:
                progress(self.whose[entry.file], copied / total / 2)
                pieces[entry.file] = self._copy(entry, work / STORE_DIR / entry.file)
                copied += self.staged.bytes_of(entry)
            self.describe(work, pieces)
            finish(work, out, overwrite, self.staged,
                   lambda what, done: progress(what, 0.5 + done / 2))
        return True

    def describe(self, directory: Path, pieces: dict[str, Pieces | None]) -> None:
        """Write the plan, the part_config, the manifest and what is staged into a directory."""
        store = directory / STORE_DIR
        store.mkdir(exist_ok=True, parents=True)
        self.plan.save(directory / PLAN_FILE)
        write_part_config(directory, self.plan, self.graph_name)
        shutil.copyfile(self.store.directory / MANIFEST_FILE, store / MANIFEST_FILE)
        replace(self.staged, files=pieces).save(store)

    def _copy(self, entry: ArrayEntry, file: Path) -> Pieces | None:
        """Copy a file that is not there yet, from where an earlier copy ended."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + ".part")
        pieces = self.staged.files[entry.file]
        if pieces is None and file.exists() and file.stat().st_size == entry.bytes:
            return None
        if pieces is not None and not isinstance(self.files, RemotePath):
            return self._cut(entry, pieces, self.files / entry.file, file)
        if partial.exists() and partial.stat().st_size > entry.bytes:
            partial.unlink()  # of another graph
        with partial.open("ab") as written:
            for data in blocks(self.files / entry.file, written.tell()):
                written.write(data)
        if pieces is None:
            partial.replace(file)
            return None
        try:
            return self._cut(entry, pieces, partial, file)
        finally:
            partial.unlink()

    def _cut(self, entry: ArrayEntry, pieces: Pieces, whole: Path, file: Path) -> Pieces:
        """Write the pieces of a whole file, with the size that it has; returns them with their
        checksum.

        Raises
        ------
        InputError
            The whole file was damaged: the pieces' own checksum would not say that.
        """
        if file_sum(whole) != entry.sha256:
            raise InputError(f"{self.source}: file {entry.file} is damaged, or was on its way here")
        cut = file.with_name(file.name + ".cut")
        with whole.open("rb") as given, cut.open("wb") as written:
            written.truncate(entry.bytes)
            for at, data in pieces.read(given):
                written.seek(at)
                written.write(data)
        cut.replace(file)
        return replace(pieces, sha256=pieces_sum(pieces, file))

    def link(self, directory: Path) -> None:
        """Lay out a staged directory of links to the files, for what follows links; pieces of files
        are written.

        Raises
        ------
        InputError
            A file of which pieces are wanted is damaged.
        """
        pieces: dict[str, Pieces | None] = {}
        for entry in self.entries:
            file = directory / STORE_DIR / entry.file
            if self.staged.files[entry.file] is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.symlink_to((self.store.directory / entry.file).resolve())
                pieces[entry.file] = None
            else:
                pieces[entry.file] = self._copy(entry, file)
        self.describe(directory, pieces)

    def _check_room(self, work: Path) -> None:
        there, room = bytes_in(work), shutil.disk_usage(work).free
        if self.bytes - there > room:
            raise HetaError(f"{work.parent} has room for {room:,} bytes, but {self.staged} of "
                            f"{self.source} need {self.bytes - there:,} more; nothing was copied")


@dataclass(frozen=True)
class OpenedPartition:
    """A partition to stage from, whole."""

    name: str
    graph_name: str
    store: Store
    plan: Plan
    files: Path


@contextlib.contextmanager
def opened_partition(source: str) -> Iterator[OpenedPartition]:
    """A partition directory, by its path or its URL.

    Of one in object storage the plan, the manifest and what says where relations are cut are here
    for the body.

    Raises
    ------
    InputError
        There is no partition, or it was staged itself.
    HetaError
        Object storage does not answer.
    """
    if not is_remote(source):
        store, plan = open_partition(source)
        if store.staged is not None:
            raise InputError(f"{source} is staged for {store.staged} already; stage from the "
                             "partition that it was staged from")
        name = graph_name_of(part_config_file(Path(source)))
        yield OpenedPartition(source, name, store, plan, store.directory)
        return
    directory = RemotePath.of(source)
    with scratch_directory(None, "dgl-heta-stage") as scratch:
        names = [file.name for file in directory.iterdir() if file.is_file()]
        if PLAN_FILE not in names:
            raise InputError(f"{source} is no partition: it holds no {PLAN_FILE}; write one with "
                             "`dgl-heta partition`, and copy it there with its store")
        for name in names:
            if name.endswith(".json") or name.startswith("owner-"):
                _fetch(directory / name, scratch / name)
        config = part_config_file(scratch)
        location, name = store_of_config(config), graph_name_of(config)
        if location is None:
            raise InputError(f"{source}: part_config {config.name} is damaged; make the partition "
                             "again")
        files = (directory / os.path.relpath(location, scratch)).resolve()
        here = scratch / STORE_DIR
        _fetch(files / MANIFEST_FILE, here / MANIFEST_FILE)
        plan = Plan.load(scratch / PLAN_FILE)
        manifest = Manifest.load(here)
        write_part_config(scratch, plan, name)
        cut = _cut_relations(plan)
        pointers = [item.indptr.file for item in manifest.relations if item.relation in cut]
        for file in pointers:
            _fetch(files / file, here / file)
        Staged((), plan.num_parts, plan_sum(plan.to_json()), manifest.checksum,
               dict.fromkeys(pointers)).save(here)
        opened, plan = open_partition(scratch, verify=True)
        yield OpenedPartition(source, name, opened, plan, files)


def stage_all(partition: Path, to: Path, *, overwrite: bool, progress: Progress,
              builders: Builders = ALONE) -> None:
    """Stage each partition of a directory into one of its own, `part-0` … in `to`; several builders
    stage a share of them each.

    Raises
    ------
    InputError, HetaError
        As :meth:`Staging.write`.
    """
    with opened_partition(str(partition)) as opened:
        for part in range(builders.rank, opened.plan.num_parts, builders.size):
            Staging.of(opened, [part]).write(to / f"part-{part}", overwrite=overwrite,
                                             progress=progress)


def _fetch(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as file:
        for data in blocks(path):
            file.write(data)


def _also(store: Store, names: Sequence[str]) -> tuple[set[Relation], set[str]]:
    """Relations and node types by their names."""
    relations = {":".join(r): r for r in store.schema.relations}
    unknown = [n for n in names if n not in relations and n not in store.schema.node_counts]
    if unknown:
        raise InputError(f"--also is '{unknown[0]}', which is neither a relation nor a node type; "
                         f"there are {listing([*relations, *store.schema.node_types])}")
    return {relations[n] for n in names if n in relations}, {
        n for n in names if n in store.schema.node_counts}


def _files(store: Store, plan: Plan, parts: Sequence[int], relations: set[Relation],
           types: set[str]) -> tuple[dict[str, Pieces | None], dict[str, str]]:
    """Files that partitions read, with their pieces, and whose each is."""
    files: dict[str, Pieces | None] = {}
    whose: dict[str, str] = {}
    manifest, own = store.manifest, [plan.partitions[p] for p in parts]
    cut = _cut_relations(plan) - relations
    relations = relations.union(*(p.relations for p in own))

    def add(entries: list[ArrayEntry], name: str) -> None:
        for entry in entries:
            files.setdefault(entry.file, None)
            whose[entry.file] = name

    types = types.union(*(p.node_types for p in own))
    for ntype in manifest.node_counts:
        if ntype in types:
            add(manifest.entries([ntype], []), ntype)
        elif ntype in plan.targets:  # whose seeds, labels and masks all workers know
            arrays = manifest.arrays[ntype]
            add([e for name, e in arrays.items() if name != "feat"], ntype)
            if manifest.timed:  # by which a table of seeds names them
                add([e for e in manifest.entries([ntype], []) if e not in arrays.values()], ntype)
    for item in manifest.relations:
        if item.relation in relations:
            add(item.files, str(item.relation))
            if item.relation in cut:
                files |= _cut_files(store, plan, parts, item)
    return files, whose


def _cut_relations(plan: Plan) -> set[Relation]:
    return {r for p in plan.partitions for r in p.ranges} | plan.ownership.keys()


def _cut_files(store: Store, plan: Plan, parts: Sequence[int], item: RelationEntry
               ) -> dict[str, Pieces | None]:
    """Pieces of a cut relation's neighbours; its pointers stay whole: all else counts by them."""
    relation = item.relation
    indptr = store.pointers(relation)
    chosen: list[tuple[int, int]] = []
    if relation in plan.ownership:
        own = plan.ownership[relation]
        rows = np.isin(own.owner, parts)
        rows[[hub.node for hub in own.hubs]] = False
        bounds = np.flatnonzero(np.diff(rows, prepend=False, append=False)).reshape(-1, 2)
        chosen = [(int(indptr[low]), int(indptr[high])) for low, high in bounds.tolist()]
        chosen += [(int(indptr[hub.node]) + low, int(indptr[hub.node]) + high)
                   for hub in own.hubs for part in parts for low, high in [hub.of(part)]]
    else:
        own_ranges = [plan.partitions[p].ranges.get(relation, (0, 0)) for p in parts]
        chosen = [(int(indptr[low]), int(indptr[high])) for low, high in own_ranges]
    entries = [item.indices, *([item.edge_ids] if item.edge_ids else [])]
    # Of a node whose in-edges are cut, how many are there at a time is a question to all of them.
    if item.times and not (relation in plan.ownership and plan.ownership[relation].hubs):
        entries.append(item.times)
    return {entry.file: pieces_of(entry, sorted(chosen)) for entry in entries}
