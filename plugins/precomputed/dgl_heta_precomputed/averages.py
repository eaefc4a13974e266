"""Neighbour averages, computed once and out of core (Heta technical report, appendix C).

Models of the precomputed family read, per target node, averages of its neighbours' features:
one per metapath (SeHGNN, Yang et al. 2023, https://arxiv.org/abs/2207.02547), or one per subset of
relations and hop (NARS, Yu et al. 2020, https://arxiv.org/abs/2011.09679). This module makes and
reads the arrays.

The last relation of a metapath is a root relation of the plan, so what a partition needs follows
from its sub-metatrees. Arrays are plain `.npy` files that are mapped; their directory is reused
while graph, relations and settings are the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta import InputError, Relation, Schema, Store
from dgl_heta.tools import (
    agrees,
    changed,
    file_sum,
    gather_rows,
    initial_rows,
    kernel,
    new_array,
    new_directory,
    prefetch,
    write_signed,
)

log = logging.getLogger("dgl_heta")

Metapath = tuple[Relation, ...]

MANIFEST = "precomputed.json"
MOST_PATHS = 10_000
_FORMAT = "dgl-heta-precomputed"

Progress = Callable[[str, float], None]


def paths_into(schema: Schema, target: str, hops: int,
               roots: Collection[Relation] | None = None) -> list[Metapath]:
    """All metapaths of 1 … `hops` relations that end at `target`, shorter ones first.

    With `roots`, those whose last relation is one of them.

    Raises
    ------
    InputError
        There are more than 10,000 of them.
    """
    level: list[Metapath] = [(r,) for r in schema.into[target] if roots is None or r in roots]
    paths = list(level)
    for _ in range(hops - 1):
        level = [(before, *path) for path in level for before in schema.into[path[0].src]]
        paths += level
        if len(paths) > MOST_PATHS:
            raise InputError(f"'{target}' has more than {MOST_PATHS:,} metapaths of up to {hops} "
                             "relations; use fewer layers, or name the metapaths "
                             "(partition.metapaths)")
    return paths


def relation_subsets(schema: Schema, target: str, count: int, seed: int
                     ) -> list[frozenset[Relation]]:
    """`count` random subsets of the relations, each with a relation into the target (NARS §4.1)."""
    generator = random.Random(seed)
    subsets: list[frozenset[Relation]] = []
    while len(subsets) < count:
        subset = frozenset(r for r in schema.relations if generator.random() < 0.5)
        if subset & set(schema.into[target]):
            subsets.append(subset)
    return subsets


class Averages:
    """Arrays of neighbour averages in a directory, by name; each (target nodes, width)."""

    def __init__(self, directory: Path, names: Sequence[str], rows: int) -> None:
        self._arrays = [_opened(directory / f"{name}.npy", rows) for name in names]

    def read(self, index: int, ids: np.ndarray) -> Tensor:
        """Rows of array `index` for node ids (int64)."""
        return torch.from_numpy(gather_rows(self._arrays[index], ids))


def path_averages(store: Store, paths: Sequence[Metapath], out: Path, *, width: int,
                  memory_mb: int = 512, double: bool = False, seed: int = 0,
                  progress: Progress | None = None) -> Averages:
    """For each metapath (r_1, …, r_l) the array A_l … A_1 X, with A_r the mean by relation r.

    X are the static features of the first type, or random rows `width` wide for types without
    (as the paper's evaluation has them). A row without neighbours is 0. Prefixes that several
    paths share are computed once, and removed when nothing needs them any more.

    Parameters
    ----------
    memory_mb : limit of working buffers; mapped files do not count.
    double : float64 instead of float32 arrays.
    """
    names = [f"path-{i:05d}" for i in range(len(paths))]
    key = _key(store, [[list(r) for r in path] for path in paths], width, double, seed)
    if not _complete(out, key, names):
        with new_directory(out, overwrite=True, kind=MANIFEST) as directory:
            work = _Work(store, directory, width, memory_mb, double, seed)
            total = max(len({path[:k + 1] for path in paths for k in range(len(path))}), 1)
            for done, (path, array) in enumerate(work.walk(sorted(set(paths))), 1):
                if progress:
                    progress(" ".join(r.etype for r in path), done / total)
                # A prefix can be one of the metapaths itself, and a metapath can be named twice.
                for name, wanted in zip(names, paths):
                    if wanted == path:
                        work.keep(array, name)
            work.clean()
            _finish(directory, key, names)
    return Averages(out, names, store.schema.node_counts[paths[0][-1].dst] if paths else 0)


def subset_averages(store: Store, target: str, subsets: Sequence[frozenset[Relation]], hops: int,
                    roots: Collection[Relation], out: Path, *, width: int, memory_mb: int = 512,
                    double: bool = False, seed: int = 0, progress: Progress | None = None
                    ) -> Averages:
    """For each subset and hop 1 … `hops` the average over all neighbours by its relations.

    H_l(v) = Σ_r Σ_u H_{l-1}(u) / Σ_r |N_r(v)| over the subset's relations r into v. The last
    step, into the target, takes the sum over `roots` alone and the divisor over all: added
    over partitions, the arrays are whole. Arrays are in the order of (subset, hop).

    Raises
    ------
    InputError
        Types have features of different widths.
    """
    width = common_width(store, width)
    names = [f"subset-{k:03d}-{hop}" for k in range(len(subsets)) for hop in range(1, hops + 1)]
    chosen = sorted(roots)
    key = _key(store, [[list(r) for r in chosen], target, hops,
                       [sorted(map(list, s)) for s in subsets]], width, double, seed)
    if not _complete(out, key, names):
        with new_directory(out, overwrite=True, kind=MANIFEST) as directory:
            work = _Work(store, directory, width, memory_mb, double, seed)
            types = store.schema.node_types
            inputs = {t: work.input(t) for t in types}
            for k, subset in enumerate(subsets):
                states = inputs
                into = {t: [r for r in store.schema.into[t] if r in subset] for t in types}
                for hop in range(1, hops + 1):
                    array = work.average([r for r in into[target] if r in roots], into[target],
                                         states, target)
                    work.keep(array, names[k * hops + hop - 1])
                    if progress:
                        progress(f"subset {k + 1} hop {hop}", (k * hops + hop) / len(names))
                    if hop < hops:
                        reached = {t: work.average(into[t], into[t], states, t) for t in types}
                        work.drop(states, inputs)
                        states = reached
                work.drop(states, inputs)
            work.clean()
            _finish(directory, key, names)
    return Averages(out, names, store.schema.node_counts[target])


def common_width(store: Store, width: int) -> int:
    """The width of all types' features; of types without, that of the others, or `width`.

    Raises
    ------
    InputError
        The widths differ.
    """
    widths = {t: store.width(t, "feat") for t in store.schema.node_types
              if store.has_array(t, "feat")}
    if len(set(widths.values())) > 1:
        raise InputError("nars averages features over relations, so all node types need features "
                         "of one width, but they have "
                         + ", ".join(f"{t} {w}" for t, w in widths.items())
                         + "; use model sehgnn, or bring them to one width")
    return next(iter(widths.values()), width)


class _Work:
    """A directory of intermediate arrays, and the limit of what is in memory at a time."""

    def __init__(self, store: Store, directory: Path, width: int, memory_mb: int, double: bool,
                 seed: int) -> None:
        self._store, self._directory, self._width, self._seed = store, directory, width, seed
        self._bytes = memory_mb * 1_000_000
        self._dtype = np.dtype(np.float64 if double else np.float32)
        self._inputs: dict[str, np.ndarray] = {}
        self._files: dict[int, Path] = {}
        self._count = 0

    def input(self, ntype: str) -> np.ndarray:
        """The input features of a type, readable by the kernel."""
        if ntype not in self._inputs:
            store, count = self._store, self._store.schema.node_counts[ntype]
            if store.has_array(ntype, "feat"):
                known, scale = store.features(ntype)
                if (scale is None and known.dtype in (np.float32, np.float64)
                        and known.dtype.isnative):
                    self._inputs[ntype] = known
                    return known
                width = known.shape[1]
            else:
                known, width = None, self._width
            array = self._new(count, width)
            for low, high in self._chunks(count, width):
                if known is not None:
                    array[low:high] = store.feature_rows(ntype, low, high)
                else:
                    dtype = torch.float64 if self._dtype == np.float64 else torch.float32
                    array[low:high] = initial_rows(self._seed, ntype, low, high, width,
                                                   dtype).numpy()
            self._inputs[ntype] = array
        return self._inputs[ntype]

    def average(self, relations: Sequence[Relation], counted: Sequence[Relation],
                states: dict[str, np.ndarray], ntype: str) -> np.ndarray:
        """Sums over neighbours by `relations`, divided by the number of those by `counted`."""
        rows = self._store.schema.node_counts[ntype]
        width = next(iter(states.values())).shape[1]
        out = self._new(rows, width)
        sums = [(r, self._store.relation(r), states[r.src]) for r in relations]
        pointers = [self._store.relation(r).indptr for r in counted]
        for low, high in self._chunks(rows, width):
            buffer = np.zeros((high - low, width), self._dtype)
            for relation, csc, source in sums:
                if not _add(csc.indptr, csc.indices, source, low, buffer):
                    raise changed(relation, csc)
            # The divisor counts all relations, those of other partitions, too: sums add up then.
            degrees = np.zeros(high - low, np.int64)
            for indptr in pointers:
                degrees += np.diff(indptr[low:high + 1])
            out[low:high] = buffer / np.maximum(degrees, 1)[:, None].astype(self._dtype)
        return out

    def walk(self, paths: Sequence[Metapath]) -> Iterator[tuple[Metapath, np.ndarray]]:
        """The arrays of all prefixes of some metapaths, sorted; each is dropped afterwards."""
        stack: list[tuple[Metapath, np.ndarray]] = []
        for path in paths:
            while stack and path[:len(stack[-1][0])] != stack[-1][0]:
                self._remove(stack.pop()[1])
            for length in range(len(stack) + 1, len(path) + 1):
                relation = path[length - 1]
                states = stack[-1][1] if stack else self.input(relation.src)
                array = self.average([relation], [relation], {relation.src: states}, relation.dst)
                stack.append((path[:length], array))
                yield path[:length], array
        while stack:
            self._remove(stack.pop()[1])

    def keep(self, array: np.ndarray, name: str) -> None:
        """Give an array a name; it stays readable where it is."""
        array.flush()  # type: ignore[attr-defined]
        file = self._directory / f"{name}.npy"
        try:
            file.hardlink_to(self._files[id(array)])
        except OSError:  # a file system without links
            shutil.copyfile(self._files[id(array)], file)

    def drop(self, states: dict[str, np.ndarray], but: dict[str, np.ndarray]) -> None:
        """Remove arrays, but for those in `but`."""
        for ntype, array in states.items():
            if array is not but.get(ntype):
                self._remove(array)

    def clean(self) -> None:
        """Remove all arrays without a name."""
        for file in self._files.values():
            file.unlink(missing_ok=True)

    def _remove(self, array: np.ndarray) -> None:
        self._files.pop(id(array)).unlink()

    def _new(self, rows: int, width: int) -> np.ndarray:
        self._count += 1
        file = self._directory / f"step-{self._count:05d}.npy"
        array = new_array(file, self._dtype, (max(rows, 1), width))[:rows]
        self._files[id(array)] = file
        return array

    def _chunks(self, rows: int, width: int) -> Iterator[tuple[int, int]]:
        size = max(int(self._bytes // (3 * max(width * self._dtype.itemsize, 8))), 1)
        for low in range(0, rows, size):
            yield low, min(low + size, rows)


@kernel
def _add(indptr, indices, states, first, out):  # type: ignore[no-untyped-def]
    """Add the states of neighbours; False where a number in a file is out of range."""
    for row in range(len(out)):
        begin = indptr[first + row]
        end = indptr[first + row + 1]
        if begin < 0 or end < begin or end > len(indices):
            return False
        for edge in range(begin, end):
            prefetch(states, indices, edge)
            source = indices[edge]
            if source < 0 or source >= len(states):
                return False
            for k in range(out.shape[1]):
                out[row, k] += states[source, k]
    return True


def _key(store: Store, what: Any, width: int, double: bool, seed: int) -> str:
    content = json.dumps([store.manifest.checksum, what, width, double, seed])
    return hashlib.sha256(content.encode()).hexdigest()


def _complete(out: Path, key: str, names: Sequence[str]) -> bool:
    """Return whether a directory has the averages of a key, undamaged."""
    try:
        note = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(note, dict) or note.get("key") != key:
            return False
        if agrees(note) and all(file_sum(out / f"{name}.npy") == note["files"].get(name)
                                for name in set(names)):
            return True
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    log.warning("the neighbour averages in %s are damaged, or of an earlier version: they are "
                "computed again", out)
    return False


def _finish(directory: Path, key: str, names: Sequence[str]) -> None:
    sums = {name: file_sum(directory / f"{name}.npy") for name in sorted(set(names))}
    write_signed(directory / MANIFEST, {"format": _FORMAT, "version": 1, "key": key,
                                        "files": sums})


def _opened(path: Path, rows: int) -> np.ndarray:
    """A mapped array of so many rows; rows are read by number without a look at the length."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # never unpickles
    except Exception as error:  # NumPy's parser raises almost anything at a damaged header
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read neighbour averages {path}: {reason}; remove {path.parent} "
                         "to compute them again") from None
    if array.ndim != 2 or len(array) != max(rows, 1) or array.dtype.kind != "f":
        raise InputError(f"neighbour averages {path} are {array.dtype.str}{list(array.shape)}; "
                         f"there must be {rows} rows: remove {path.parent} to compute them again")
    return array
