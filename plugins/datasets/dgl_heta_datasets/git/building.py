"""From commits to a graph: ids, edges, features, labels."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from dgl_heta import EdgeArrays, GraphSource, InputError, Relation, Task
from dgl_heta.tools import MASKS, listing
from dgl_heta_datasets.git.log import Commit

TARGETS = ("file", "commit")
WORD_COMMITS = 3  # commits that mention a word, at least
_WORD = re.compile(r"[a-z]{3,}")


class _Names:
    """Ids by name, in the order in which names first come."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids))


class _Pairs:
    """Edges as they come, eight bytes each."""

    def __init__(self) -> None:
        self.src, self.dst = array("i"), array("i")

    def add(self, src: int, dst: int) -> None:
        self.src.append(src)
        self.dst.append(dst)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.src, np.int32), np.array(self.dst, np.int32)


class Builder:
    """Takes commits one after the other, the latest first, and makes the graph of them."""

    def __init__(self) -> None:
        self.commits, self.authors = _Names(), _Names()
        self.files, self.folders, self.words = _Names(), _Names(), _Names()
        self.parent, self.wrote = _Pairs(), _Pairs()
        self.touched, self.mentions = _Pairs(), _Pairs()
        self._log: list[tuple[int, int, int, int]] = []  # id, time, parents, length of the subject

    def add(self, commit: Commit) -> None:
        own = self.commits.id(commit.name)
        self._log.append((own, commit.time, len(commit.parents), len(commit.subject)))
        for parent in commit.parents:
            self.parent.add(own, self.commits.id(parent))
        self.wrote.add(self.authors.id(commit.author), own)
        for file in dict.fromkeys(commit.files):
            self.touched.add(own, self.files.id(file))
        for word in dict.fromkeys(_WORD.findall(commit.subject.lower())):
            self.mentions.add(own, self.words.id(word))

    def source(self, name: str, target: str, least: int, info: dict[str, Any]) -> GraphSource:
        """The graph, with the task to tell the kind of a file or the sub-system of a commit."""
        log = np.array(self._log[::-1], np.int64)  # the earliest first
        times = log[:, 1]
        new = np.full(len(self.commits), -1, np.int32)  # a parent beyond the log has no new id
        new[log[:, 0]] = np.arange(len(log))
        parent = _renumbered(self.parent.arrays(), new, new)
        wrote = _renumbered(self.wrote.arrays(), None, new)
        touched = _renumbered(self.touched.arrays(), new, None)
        mentions = _renumbered(self.mentions.arrays(), new, None)
        inside, within = self._folders()
        if target == "file":
            labels, classes = self._kinds(least)
            arrays = {"file": {"label": labels, **_masks(labels, self.files.ids)}}
        else:
            half = len(times) // 2  # the earlier half keeps its files and has no label
            labels, classes = self._systems(touched, half, len(times), least)
            early = touched[0] < half
            touched = touched[0][early], touched[1][early]
            names = list(self.commits.ids)
            arrays = {"commit": {"label": labels,
                                 **_masks(labels, [names[own] for own in log[:, 0]])}}
        mentions, words = self._kept_words(mentions, classes if target == "commit" else [])
        arrays.setdefault("commit", {})["feat"] = _commit_features(times, log[:, 2:])
        arrays["commit"]["time"] = times
        arrays.setdefault("file", {})["feat"] = self._file_features(touched, times)

        forward = {
            Relation("commit", "parent", "commit"): (parent, 0),
            Relation("author", "wrote", "commit"): (wrote, 1),
            Relation("commit", "touched", "file"): (touched, 0),
            Relation("file", "in", "folder"): (inside, None),
            Relation("folder", "within", "folder"): (within, None),
            Relation("commit", "mentions", "word"): (mentions, 0),
        }
        counts = {"commit": len(times), "author": len(self.authors), "file": len(self.files),
                  "folder": len(self.folders), "word": words}
        edges: dict[Relation, Any] = {}
        data: dict[Relation, dict[str, np.ndarray]] = {}
        for relation, ((src, dst), end) in forward.items():
            if not len(src):
                continue
            back = Relation(relation.dst, f"rev-{relation.etype}", relation.src)
            edges[relation], edges[back] = EdgeArrays(src, dst), EdgeArrays(dst, src)
            if end is not None:
                data[relation] = data[back] = {"time": times[(src, dst)[end]]}
        used = {ntype for relation in edges for ntype in (relation.src, relation.dst)}
        counts = {ntype: count for ntype, count in counts.items() if ntype in used}
        return GraphSource(name, counts, edges, {t: a for t, a in arrays.items() if t in used},
                           Task(target, len(classes)), info | {"classes": classes}, data)

    def _folders(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Edges from files to their folders, and from these to theirs."""
        inside, within = _Pairs(), _Pairs()

        def number_of(folder: PurePosixPath) -> int:
            known = self.folders.ids.get(str(folder))
            if known is not None:
                return known
            own = self.folders.id(str(folder))
            if folder != folder.parent:
                within.add(own, number_of(folder.parent))
            return own

        for file, own in self.files.ids.items():
            inside.add(own, number_of(PurePosixPath(file).parent))
        return inside.arrays(), within.arrays()

    def _kinds(self, least: int) -> tuple[np.ndarray, list[str]]:
        kinds = [kind(file) for file in self.files.ids]
        return _classes(kinds, least, "kinds of files")

    def _systems(self, touched: tuple[np.ndarray, np.ndarray], first: int, commits: int,
                 least: int) -> tuple[np.ndarray, list[str]]:
        """Where most files of a commit are, from the commit `first` on; of equals the first."""
        systems = [system(file) for file in self.files.ids]
        counts: dict[int, Counter[str]] = {}
        late = touched[0] >= first
        for commit, file in zip(touched[0][late].tolist(), touched[1][late].tolist()):
            counts.setdefault(commit, Counter())[systems[file]] += 1
        chosen = [""] * commits
        for commit, seen in counts.items():
            chosen[commit] = min(seen, key=lambda name: (-seen[name], name))
        return _classes(chosen, least, "sub-systems")

    def _kept_words(self, mentions: tuple[np.ndarray, np.ndarray], forbidden: list[str]
                    ) -> tuple[tuple[np.ndarray, np.ndarray], int]:
        """Mentions of words that enough commits have and no class is named by."""
        src, dst = mentions
        kept = np.bincount(dst, minlength=len(self.words)) >= WORD_COMMITS
        named = {word for name in forbidden for word in _WORD.findall(name.lower())}
        for word in named & self.words.ids.keys():
            kept[self.words.ids[word]] = False
        new = np.cumsum(kept) - 1
        chosen = kept[dst]
        return (src[chosen], new[dst[chosen]].astype(np.int32)), int(kept.sum())

    def _file_features(self, touched: tuple[np.ndarray, np.ndarray], times: np.ndarray
                       ) -> np.ndarray:
        """How often a file was touched, first and last when, and how deep it lies."""
        commit, file = touched
        count = np.bincount(file, minlength=len(self.files))
        first, last = (np.full(len(self.files), bound) for bound in (times.max(), times.min()))
        np.minimum.at(first, file, times[commit])
        np.maximum.at(last, file, times[commit])
        for when in (first, last):
            when[count == 0] = int(times.mean())
        depth = [name.count("/") for name in self.files.ids]
        return _standardised(np.log1p(count), first, last, depth)


def kind(file: str) -> str:
    """The ending of a file's name, or where there is none, the name: `py`, `makefile`."""
    name = PurePosixPath(file).name.lower()
    stem, dot, ending = name.rpartition(".")
    return ending if dot and stem and ending else name


def system(file: str) -> str:
    """The topmost folder that a file is in, or `.`."""
    top, slash, _ = file.partition("/")
    return top if slash else "."


def _classes(values: list[str], least: int, what: str) -> tuple[np.ndarray, list[str]]:
    counts = Counter(value for value in values if value)
    classes = sorted(value for value, count in counts.items() if count >= least)
    if len(classes) < 2:
        raise InputError(f"of {len(counts)} {what} ({listing(counts, 6)}), {len(classes)} have "
                         f"{least} members or more; a task needs two classes: choose a smaller "
                         "`least`, or the other target")
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number.get(value, -1) for value in values], np.int64), classes


def _masks(label: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
    """60 % for training, 20 % each for validation and test, by a hash of the name."""
    draws = np.array([int.from_bytes(hashlib.blake2b(str(name).encode("utf-8", "replace"),
                                                     digest_size=4, person=b"split").digest(),
                                     "little") % 100 for name in names])
    split = np.where(label < 0, -1, (draws >= 60).astype(int) + (draws >= 80))
    return {name: split == i for i, name in enumerate(MASKS)}


def _renumbered(pairs: tuple[np.ndarray, np.ndarray], src: np.ndarray | None,
                dst: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Edges by new ids, without those of which an end has none."""
    one, two = (ends if new is None else new[ends] for ends, new in zip(pairs, (src, dst)))
    kept = (one >= 0) & (two >= 0)
    return one[kept], two[kept]


def _commit_features(times: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """When a commit was made, in history, week and day, its parents, the length of its subject."""
    circles = [function(2 * np.pi * times / period) for period in (86_400, 604_800)
               for function in (np.sin, np.cos)]
    return _standardised(times, *circles, shapes[:, 0], np.log1p(shapes[:, 1]))


def _standardised(*columns: Any) -> np.ndarray:
    table = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    table -= table.mean(axis=0)
    spread = table.std(axis=0)
    return (table / np.where(spread > 1e-9, spread, 1)).astype(np.float32)
