"""IGB-HET of every size, and MLPerf's IGBH, as they are downloaded (Khatua et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import EdgeArrays, GraphSource, InputError, Reader, Relation, Task, read_saved
from dgl_heta.tools import MASKS
from dgl_heta_datasets.published.files import classes, edges, mapped, mask

WIDTH = 1024
LABELS = {19: ("node_label_19.npy", 227_130_858), 2983: ("node_label_2K.npy", 157_675_969)}
"""Classes → their file, and of IGBH's full size how many papers, the first ones, have a label."""
FULL = 269_346_174
"""Papers of the full size."""
SPLITS = dict(zip(("train_idx.pt", "val_idx.pt"), MASKS))


class Igb(Reader):
    """The directory `processed` of a size, or the one above it; target: a paper's topic.

    Every node type that has a directory with `node_feat.npy` is read, and every relation that has
    one with `edge_index.npy`, pairs of ids: four types of tiny, small and medium, six of large and
    full. Features stay float32, or are float16 where there is a `node_feat_fp16.pt` beside them, as
    MLPerf's reference makes it. Splits are those of MLPerf's `split_seeds.py` (`train_idx.pt`,
    `val_idx.pt`; test: other papers with a label), or of IGB's loader: 60, 20 and 20 %, in order.
    """

    name = "igb-het"
    description = "IGB-HET and MLPerf's IGBH, as they are downloaded"

    class Options(BaseModel):
        """Options of the graph."""

        classes: int = Field(2983, description="19 or 2983 topics")
        half: bool = Field(True, description="take node_feat_fp16.pt where it is there")
        mlperf: bool = Field(False, description="edges as MLPerf's reference makes them: citations "
                             "in both directions, with each paper's own, and reverse relations")

    options = Options()

    def matches(self, path: Path) -> bool:
        return (_folder(path) / "paper__cites__paper").is_dir()

    def read(self, path: Path, **options: Any) -> GraphSource:
        folder, number = _folder(path), options["classes"]
        if number not in LABELS:
            raise InputError(f"igb-het has 19 or 2983 classes; classes = {number}")
        arrays = {file.parent.name: {"feat": _features(file.parent, options["half"])}
                  for file in sorted(folder.glob("*/node_feat.npy"))}
        if "paper" not in arrays:
            raise InputError(f"{folder} has no paper/node_feat.npy")
        relations: dict[Relation, Any] = {}
        for file in sorted(folder.glob("*__*__*/edge_index.npy")):
            relation = Relation(*file.parent.name.split("__"))
            if lacking := {relation.src, relation.dst} - set(arrays):
                raise InputError(f"{folder} has edges of '{relation}', but no "
                                 f"{sorted(lacking)[0]}/node_feat.npy")
            relations[relation] = edges(file, 1)
        counts = {t: len(of["feat"]) for t, of in arrays.items()}
        if options["mlperf"]:
            cites = Relation("paper", "cites", "paper")
            relations |= {Relation(r.dst, f"rev-{r.etype}", r.src): EdgeArrays(e.dst, e.src)
                          for r, e in relations.items() if r != cites}
            relations[cites] = BothWays(relations[cites], counts["paper"])
        papers, (name, known) = counts["paper"], LABELS[number]
        known = known if papers == FULL else papers
        arrays["paper"]["label"] = classes(folder / "paper" / name, papers, known)
        arrays["paper"] |= _splits(folder, papers, known)
        return GraphSource("igb-het", counts, relations, arrays, Task("paper", number),
                           {"format": "IGB-HET", "path": str(folder)})


class BothWays:
    """Edges among `nodes` nodes in both directions, and two from each node to itself in place of
    those that there are."""

    def __init__(self, edges: EdgeArrays, nodes: int) -> None:
        self._edges, self._nodes = edges, nodes

    @cached_property
    def num_edges(self) -> int:
        return 2 * (self._nodes + sum(int(np.count_nonzero(src != dst))
                                      for src, dst in self._edges.chunks(1 << 24)))

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for src, dst in self._edges.chunks(size):
            others = src != dst
            src, dst = src[others], dst[others]
            yield src, dst
            yield dst, src
        for start in range(0, self._nodes, size):
            own = np.arange(start, min(start + size, self._nodes))
            yield own, own
            yield own, own


def _folder(path: Path) -> Path:
    return path if path.name == "processed" else path / "processed"


def _features(folder: Path, half: bool) -> np.ndarray:
    saved = folder / "node_feat_fp16.pt"
    if half and saved.exists():
        feat: Any = read_saved(saved)
        if not isinstance(feat, np.ndarray) or feat.dtype != np.float16:
            raise InputError(f"{saved} holds no tensor of float16")
    else:
        feat = mapped(folder / "node_feat.npy", WIDTH)
    if feat.ndim != 2:
        raise InputError(f"features in {folder} have shape {feat.shape}; they must be rows")
    return feat


def _splits(folder: Path, papers: int, known: int) -> dict[str, np.ndarray]:
    if all((folder / name).exists() for name in SPLITS):
        masks = {of: mask(read_saved(folder / name), known, str(folder / name))
                 for name, of in SPLITS.items()}
        masks[MASKS[2]] = ~(masks[MASKS[0]] | masks[MASKS[1]])
    else:
        at, (train, val) = np.arange(known), (int(known * share) for share in (0.6, 0.2))
        masks = {MASKS[0]: at < train, MASKS[1]: (at >= train) & (at < train + val),
                 MASKS[2]: at >= train + val}
    return {of: np.pad(found, (0, papers - known)) for of, found in masks.items()}
