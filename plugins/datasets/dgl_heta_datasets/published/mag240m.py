"""OGB-LSC's MAG240M as `ogb.lsc` downloads it (Hu et al. 2021)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dgl_heta import GraphSource, InputError, Reader, Relation, Task, read_saved
from dgl_heta.tools import MASKS
from dgl_heta_datasets.published.files import classes, edges, mapped, mask

TYPES = ("paper", "author", "institution")
RELATIONS = (Relation("author", "affiliated_with", "institution"),
             Relation("author", "writes", "paper"), Relation("paper", "cites", "paper"))


class Mag240m(Reader):
    """The directory `mag240m_kddcup2021`; target: a paper's arXiv category.

    Papers have 768 numbers of float16, authors and institutions none. OGB keeps the labels of its
    test papers (`test-dev`, `test-challenge`) to itself, so `test_mask` has those of them that have
    a label, which in the download are none.
    """

    name = "mag240m"
    description = "OGB-LSC MAG240M, as ogb.lsc downloads it"

    def matches(self, path: Path) -> bool:
        return (path / "meta.pt").is_file() and (
            path / "processed/author___writes___paper").is_dir()

    def read(self, path: Path, **options: Any) -> GraphSource:
        meta, split = (read_saved(path / name) for name in ("meta.pt", "split_dict.pt"))
        if not isinstance(meta, dict) or not all(
                isinstance(meta.get(k), int) for k in (*TYPES, "num_classes")):
            raise InputError(f"{path / 'meta.pt'} has no numbers of papers, authors, institutions "
                             "and classes")
        if not isinstance(split, dict) or not {"train", "valid"} <= set(split):
            raise InputError(f"{path / 'split_dict.pt'} has no splits train and valid")
        counts = {t: meta[t] for t in TYPES}
        papers, folder = counts["paper"], path / "processed"
        feat = mapped(folder / "paper/node_feat.npy")
        if feat.ndim != 2 or len(feat) != papers:
            raise InputError(f"{folder / 'paper/node_feat.npy'} has shape {feat.shape} for "
                             f"{papers:,} papers of meta.pt")
        label = classes(folder / "paper/node_label.npy", papers)
        arrays = {"feat": feat, "label": label, "year": mapped(folder / "paper/node_year.npy")}
        for name, of in zip(("train", "valid", "test"), MASKS):
            if name in split:
                arrays[of] = mask(split[name], papers, f"{name} of {path / 'split_dict.pt'}")
        arrays[MASKS[2]] = arrays.get(MASKS[2], label < 0) & (label >= 0)
        return GraphSource(
            "mag240m", counts,
            {r: edges(folder / "___".join(r) / "edge_index.npy", 0) for r in RELATIONS},
            {"paper": arrays}, Task("paper", meta["num_classes"]),
            {"format": "OGB-LSC MAG240M", "path": str(path)})
