"""Staging: a directory for a machine with what its partitions read, and nothing else.

It is a partition directory whose store is staged (:mod:`dgl_heta.store.staged`): files of the
relations and node types of these partitions, with labels and masks of the target types, whose seeds
all machines know. Files are gathered beside it, in `.NAME.staging`, which stays when staging is
interrupted, so that the next one goes on with it; it becomes `NAME` when all its checksums agree.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import posixpath
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.directory import STORE_DIR, open_partition, part_config_file
from dgl_heta.partition.part_config import PLAN_FILE, part_config
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store
from dgl_heta.store.manifest import FILE_NAME as MANIFEST_FILE
from dgl_heta.store.manifest import ArrayEntry, RelationEntry
from dgl_heta.store.staged import Pieces, Staged, pieces_of, pieces_sum, plan_sum
from dgl_heta.system.atomic_files import put_directory
from dgl_heta.system.checksums import KEY
from dgl_heta.system.disk import is_full, sync_tree

Progress = Callable[[str, float], None]
_BLOCK = 2**22  # bytes


@dataclass(frozen=True)
class Staging:
    """Files of a partition directory that some of its partitions read.

    Attributes
    ----------
    source : the partition directory.
    staged : which files, without checksums of pieces.
    whose : file → the relation or node type that it is of.
    """

    source: Path
    store: Store
    plan: Plan
    staged: Staged
    whose: dict[str, str]

    @classmethod
    def of(cls, source: Path, parts: Sequence[int] | None = None, also: Sequence[str] = ()
           ) -> Staging:
        """What partitions (default: all) of a directory read.

        Parameters
        ----------
        also : relations (`src:etype:dst`) and node types beside theirs, such as a relation whose
            edges are predicted.

        Raises
        ------
        InputError
            No partition directory, no such partition, relation or node type.
        """
        store, plan = open_partition(source)
        if store.staged is not None:
            raise InputError(f"{source} is staged for {store.staged} already; stage from the "
                             "partition that it was staged from")
        chosen = tuple(sorted(set(range(plan.num_parts) if parts is None else parts)))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < plan.num_parts:
            raise InputError(f"--part is {', '.join(map(str, chosen)) or 'missing'}; {source} has "
                             f"partitions 0 to {plan.num_parts - 1}")
        files, whose = _files(store, plan, chosen, *_also(store, also))
        return cls(source, store, plan, Staged(
            chosen, plan.num_parts, plan_sum(plan.to_json()),
            store.manifest.to_json()[KEY], files), whose)

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
        if is_staged(out, self.staged):
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
            finish(work, out, overwrite, lambda what, done: progress(what, 0.5 + done / 2))
        return True

    def describe(self, directory: Path, pieces: dict[str, Pieces | None]) -> None:
        """Write the plan, the part_config, the manifest and what is staged into a directory."""
        name = json.loads(part_config_file(self.source).read_text("utf-8"))["graph_name"]
        store = directory / STORE_DIR
        store.mkdir(exist_ok=True, parents=True)
        self.plan.save(directory / PLAN_FILE)
        (directory / part_config_file(self.source).name).write_text(
            json.dumps(part_config(self.plan, name, STORE_DIR), indent=1) + "\n", "utf-8")
        shutil.copyfile(self.store.directory / MANIFEST_FILE, store / MANIFEST_FILE)
        replace(self.staged, files=pieces).save(store)

    def cut(self, entry: ArrayEntry, file: Path) -> Pieces:
        """Write the pieces of a file, which gets its full size; returns them with their checksum.

        Raises
        ------
        InputError
            The file that they are of was damaged.
        """
        pieces = self.staged.files[entry.file]
        assert pieces is not None
        whole = self.store.directory / entry.file
        for _ in self.store.compared(entry):  # their own checksum says nothing of the source
            pass
        with whole.open("rb") as given, file.open("wb") as written:
            written.truncate(entry.bytes)
            for at, data in pieces.read(given):
                written.seek(at)
                written.write(data)
        return replace(pieces, sha256=pieces_sum(pieces, file))

    def _copy(self, entry: ArrayEntry, file: Path) -> Pieces | None:
        """Copy a file that is not there yet, from where an earlier copy ended."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + ".part")
        pieces = self.staged.files[entry.file]
        if pieces is not None:
            pieces = self.cut(entry, partial)
            partial.replace(file)
            return pieces
        if not file.exists() or file.stat().st_size != entry.bytes:
            with (self.store.directory / entry.file).open("rb") as given, \
                    partial.open("ab") as written:
                given.seek(written.tell())
                shutil.copyfileobj(given, written, _BLOCK)
            partial.replace(file)
        return None

    def _check_room(self, work: Path) -> None:
        there = sum(f.stat().st_blocks * 512 for f in work.rglob("*") if f.is_file())
        room = shutil.disk_usage(work).free
        if self.bytes - there > room:
            raise HetaError(f"{work.parent} has room for {room:,} bytes, but {self.staged} of "
                            f"{self.source} need {self.bytes - there:,} more; nothing was copied")


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

    def add(entries: list[ArrayEntry], name: str) -> None:
        for entry in entries:
            files.setdefault(entry.file, None)
            whose[entry.file] = name

    types = types.union(*(p.node_types for p in own))
    for ntype in manifest.node_counts:
        if ntype in types:
            add(manifest.entries([ntype], []), ntype)
        elif ntype in plan.targets:  # whose seeds, labels and masks all workers know
            add([e for name, e in manifest.arrays[ntype].items() if name != "feat"], ntype)
    for item in manifest.relations:
        if item.relation in relations or any(item.relation in p.relations for p in own):
            add(manifest.entries([], [item.relation]), str(item.relation))
            if item.relation not in relations:
                files |= _cut_files(store, plan, parts, item)
    return files, whose


def _cut_files(store: Store, plan: Plan, parts: Sequence[int], item: RelationEntry
               ) -> dict[str, Pieces | None]:
    """Pieces of a cut relation's neighbours; its pointers stay whole: all else counts by them."""
    relation = item.relation
    indptr = store.relation(relation).indptr
    chosen: list[tuple[int, int]] = []
    if relation in plan.ownership:
        own = plan.ownership[relation]
        mine = np.isin(own.owner, parts)
        mine[[hub.node for hub in own.hubs]] = False
        bounds = np.flatnonzero(np.diff(mine, prepend=False, append=False)).reshape(-1, 2)
        chosen = [(int(indptr[low]), int(indptr[high])) for low, high in bounds.tolist()]
        chosen += [(int(indptr[hub.node]) + low, int(indptr[hub.node]) + high)
                   for hub in own.hubs for part in parts for low, high in [hub.of(part)]]
    else:
        ranges = [plan.partitions[p].ranges.get(relation) for p in parts
                  if relation in plan.partitions[p].relations]
        if None in ranges:
            return {}
        chosen = [(int(indptr[r[0]]), int(indptr[r[1]])) for r in ranges if r]
    entries = [item.indices, *([item.edge_ids] if item.edge_ids else [])]
    return {entry.file: pieces_of(entry, sorted(chosen)) for entry in entries}


def working_directory(out: Path) -> Path:
    """Where files are gathered for a staged directory."""
    return out.absolute().with_name(f".{out.name}.staging")


@contextlib.contextmanager
def receiving(out: Path, overwrite: bool) -> Iterator[Path]:
    """The directory in which files for `out` are gathered, kept to one staging at a time.

    Raises
    ------
    InputError
        `out` is there and not to be replaced; another staging writes it.
    HetaError
        It cannot be written, or its disk is full: what is there stays.
    """
    work = working_directory(out)
    try:
        if out.exists() and not overwrite:
            raise InputError(f"{out} exists and is another staging, or none; choose another "
                             "directory or ask to overwrite it (--overwrite)")
        work.mkdir(parents=True, exist_ok=True)
        with (work / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another command stages into {out}; wait for its end") from None
            yield work
    except OSError as error:
        what = ("no space left on the disk" if is_full(error) else
                f"{error.filename}: {error.strerror}" if error.filename else str(error))
        raise HetaError(f"cannot stage into {out}: {what}; what was copied stays in {work}, and "
                        "the same command goes on with it") from error


def finish(work: Path, out: Path, overwrite: bool,
           progress: Progress = lambda what, done: None) -> None:
    """Compare all files that were gathered with their checksums, and put them in place.

    Raises
    ------
    InputError
        One differs, by name: it is removed, so that the next staging copies it again.
    """
    for file in [f for f in (work / STORE_DIR).rglob("*.part") if f.is_file()]:
        file.unlink()
    store, plan = open_partition(work)
    assert store.staged is not None
    for path in [f for f in store.directory.rglob("*.npy") if f.is_file()]:
        if path.relative_to(store.directory).as_posix() not in store.staged.files:
            path.unlink()  # of an earlier staging for other partitions
    for entry in store.manifest.entries():
        if entry.file in store.staged.files:
            progress(posixpath.dirname(entry.file), 0)
            try:
                for _ in store.compared(entry):
                    pass
            except InputError as error:
                (store.directory / entry.file).unlink(missing_ok=True)
                raise InputError(f"{error} (it differs from the store that is staged, or that is "
                                 "damaged: see `dgl-heta inspect` there); run the same command "
                                 "again") from None
    plan.verify()
    sync_tree(work)
    put_directory(work, out, overwrite=overwrite, kind=PLAN_FILE)
    (out / ".lock").unlink(missing_ok=True)


def is_staged(out: Path, staged: Staged) -> bool:
    """Return whether a directory has just this staging, by its plan, manifest and files' sizes."""
    if not (out / PLAN_FILE).is_file():
        return False
    try:
        store, _ = open_partition(out)
    except InputError:
        return False
    return staged.alike(store.staged)
