"""Graphs of the Heterogeneous Graph Benchmark, Freebase among them (Lv et al. 2021)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import EdgeArrays, GraphSource, InputError, Reader, Relation, Task
from dgl_heta.tools import MASKS

T = TypeVar("T")
FILES = ("node.dat", "link.dat", "label.dat", "label.dat.test")


class Hgb(Reader):
    """The directory of a graph: `node.dat`, `link.dat`, `label.dat`, `label.dat.test`.

    Lines have fields between tabs. A node: id, name, type, and numbers between commas where the
    type has features; ids of a type follow each other, and types are in order. A link: two node
    ids, its type, a weight, which is left out. A label: node id, name, type, one class or several
    between commas. Names of types are those of `info.dat`, or `type-0`, `link-0`. The benchmark
    has no validation nodes: a share of the training nodes is drawn. Downloads from before March
    2023, when the benchmark published its test labels, may have random ones in `label.dat.test`.
    """

    name = "hgb"
    description = "graphs of HGB (Freebase, DBLP, IMDB, ACM), as they are downloaded"

    class Options(BaseModel):
        """Options of the graph."""

        validation: float = Field(0.2, gt=0, lt=1, description="share of training nodes")
        seed: int = Field(0, ge=0, description="of the validation nodes")

    options = Options()

    def matches(self, path: Path) -> bool:
        return all((path / name).is_file() for name in FILES)

    def read(self, path: Path, **options: Any) -> GraphSource:
        names = _names(path / "info.dat")
        types, features = _nodes(path / "node.dat")
        ntypes = [names["node"].get(str(k), f"type-{k}") for k in range(int(types.max()) + 1)]
        first = np.searchsorted(types, np.arange(len(ntypes) + 1))
        counts = {t: int(n) for t, n in zip(ntypes, np.diff(first))}
        if len(counts) != len(ntypes):
            raise InputError(f"{path / 'info.dat'} gives two node types one name: {ntypes}")
        arrays = {ntypes[k]: {"feat": feat} for k, feat in features.items()}
        target, labelled, num_classes, several = _labels(path, types, first, options)
        arrays.setdefault(ntypes[target], {}).update(labelled)
        return GraphSource(
            path.name, counts, _links(path / "link.dat", types, first, ntypes, names["link"]),
            arrays, Task(ntypes[target], num_classes,
                         kind="multilabel" if several else "classification"),
            {"format": "HGB", "path": str(path)})


def _rows(path: Path, least: int, parse: Callable[[list[str]], T]) -> Iterator[T]:
    """What `parse` makes of the fields of each line.

    Raises
    ------
    InputError
        A line has fewer fields than `least`, or `parse` raises a ValueError; the line is named.
    """
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                number += 1
                fields = line.rstrip("\r\n").split("\t")
                if len(fields) < least:
                    raise ValueError(f"{len(fields)} fields between tabs; {least} are expected")
                yield parse(fields)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}, line {number}: {error}") from None


def _names(path: Path) -> dict[str, dict[str, str]]:
    """Names of node and link types by their numbers, where the file has them."""
    found: dict[str, dict[str, str]] = {"node": {}, "link": {}}
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return found  # it is for people to read, and not in every download
    for kind, names in found.items():
        part = info.get(f"{kind}.dat") if isinstance(info, dict) else None
        listed = {k.lower(): v for k, v in part.items()} if isinstance(part, dict) else {}
        of = listed.get(f"{kind} type")
        for key, value in of.items() if isinstance(of, dict) else ():
            text = value.get("meaning") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                names[str(key)] = text
    return found


def _nodes(path: Path) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The type of each node; features by type."""
    types: list[int] = []
    rows: dict[int, list[np.ndarray]] = {}

    def node(fields: list[str]) -> None:
        if int(fields[0]) != len(types) or int(fields[2]) < (types[-1] if types else 0):
            raise ValueError(f"node {fields[0]} of type {fields[2]}; ids begin with 0 and follow "
                             "each other, and so do types")
        types.append(int(fields[2]))
        if len(fields) > 3:
            rows.setdefault(types[-1], []).append(np.array(fields[3].split(","), np.float32))

    for _ in _rows(path, 3, node):
        pass
    if not types:
        raise InputError(f"{path} has no node")
    of, features = np.array(types), {}
    for kind, given in rows.items():
        if len(given) != int((of == kind).sum()) or len({len(row) for row in given}) > 1:
            raise InputError(f"{path}: nodes of type {kind} do not all have equally many numbers")
        features[kind] = np.stack(given)
    return of, features


def _links(path: Path, types: np.ndarray, first: np.ndarray, ntypes: list[str],
           names: dict[str, str]) -> dict[Relation, Any]:
    pairs: dict[int, tuple[list[int], list[int]]] = {}
    for src, dst, kind in _rows(path, 3, lambda fields: tuple(map(int, fields[:3]))):
        for end, node in zip(pairs.setdefault(kind, ([], [])), (src, dst)):
            end.append(node)
    relations: dict[Relation, Any] = {}
    for kind, columns in sorted(pairs.items()):
        source, destination = ends = tuple(np.array(column) for column in columns)
        if min(map(np.min, ends)) < 0 or max(map(np.max, ends)) >= len(types):
            raise InputError(f"{path}: links of type {kind} name nodes that node.dat does not have")
        of = [np.unique(types[end]) for end in ends]
        if any(len(several) > 1 for several in of):
            raise InputError(f"{path}: links of type {kind} join nodes of several types")
        low, high = (int(one[0]) for one in of)
        relation = Relation(ntypes[low], names.get(str(kind), f"link-{kind}"), ntypes[high])
        if relation in relations:
            raise InputError(f"{path.with_name('info.dat')} gives two link types one name: "
                             f"'{relation}'")
        relations[relation] = EdgeArrays(source - first[low], destination - first[high])
    return relations


def _labels(path: Path, types: np.ndarray, first: np.ndarray, options: dict[str, Any]
            ) -> tuple[int, dict[str, np.ndarray], int, bool]:
    """The target's type, its labels and masks, the number of classes, whether nodes have several.
    """
    given = {name: dict(_rows(path / name, 4, lambda fields: (
        int(fields[0]), [int(text) for text in fields[3].split(",")]))) for name in FILES[2:]}
    train, test = (np.array(sorted(of), np.int64) for of in given.values())
    ids = np.concatenate([train, test])
    if not len(train) or min(ids) < 0 or max(ids) >= len(types) or len(np.unique(types[ids])) > 1:
        raise InputError(f"{path}: label.dat and label.dat.test must label nodes of one type")
    target = int(types[ids[0]])
    count, low = int((types == target).sum()), int(first[target])
    every = {node: labels for of in given.values() for node, labels in of.items()}
    if min(map(min, every.values())) < 0:
        raise InputError(f"{path}: labels are classes from 0")
    number, several = 1 + max(map(max, every.values())), max(map(len, every.values())) > 1
    label = np.zeros((count, number), np.float32) if several else np.full(count, -1, np.int64)
    for node, labels in every.items():
        if several:
            label[node - low, labels] = 1
        else:
            label[node - low] = labels[0]
    held = np.random.default_rng(options["seed"]).permutation(train)[
        :round(len(train) * options["validation"])]
    masks = {}
    for name, nodes in zip(MASKS, (np.setdiff1d(train, held), held, np.setdiff1d(test, train))):
        masks[name] = np.zeros(count, np.bool_)
        masks[name][nodes - low] = True
    return target, {"label": label, **masks}, number, several
