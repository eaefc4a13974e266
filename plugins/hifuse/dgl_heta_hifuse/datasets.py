"""Data sets by name: the graphs of HiFuse's Table 2, synthetic and real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dgl_heta import Dataset, GraphSource

TITLES = {"aifb": "AIFB", "mutag": "MUTAG", "bgs": "BGS", "am": "AM"}


class Synthetic(Dataset):
    """A seeded synthetic graph with the numbers of a published one."""

    def __init__(self, shape: str, title: str, scale: float) -> None:
        self.name, self.shape = f"synthetic-{shape}", shape
        self.description = f"synthetic, shape of {title}"
        self.options = {"scale": scale, "seed": 0}

    def load(self, **options: Any) -> GraphSource:
        from dgl_heta.tools import generate
        from dgl_heta_hifuse.shapes import SHAPES

        return generate(SHAPES[self.shape], options["scale"], options["seed"])


class Real(Dataset):
    """The graph itself, from the files of DGL's data class."""

    options = {"path": Path("~/.dgl")}

    def __init__(self, name: str, title: str) -> None:
        self.name, self.description = name, f"{title}, from files of dgl.data on disk"

    def load(self, **options: Any) -> GraphSource:
        from dgl_heta_hifuse import rdf

        return rdf.load(self.name, options["path"])


def every() -> list[Dataset]:
    """All data sets of this plugin."""
    return [*(Synthetic(name, title, 0.1 if name == "am" else 1.0)
              for name, title in TITLES.items()),
            *(Real(name, title) for name, title in TITLES.items())]
