"""Data sets by name; built in are synthetic graphs."""

from __future__ import annotations

from typing import Any

from dgl_heta.graph.reading_options import read_options, split_options
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.protocols import Dataset


class Synthetic(Dataset):
    """A seeded synthetic graph with the shape of a published one."""

    def __init__(self, shape: str, title: str, scale: float) -> None:
        self.name, self.shape = f"synthetic-{shape}", shape
        self.description = f"synthetic, shape of {title}"
        self.options = {"scale": scale, "seed": 0, "cohesion": 0.0, "correlation": 0.0}

    def load(self, **options: Any) -> GraphSource:
        from dgl_heta.graph.datasets import synthetic

        return synthetic.generate(self.shape, options["scale"], options["seed"],
                                  options["cohesion"], options["correlation"])

    @classmethod
    def all(cls) -> list[Synthetic]:
        """One for every published shape."""
        titles = {"mag": "ogbn-mag", "freebase": "Freebase", "donor": "Donor",
                  "igb-het": "IGB-HET", "mag240m": "MAG240M"}
        small = {"mag": 0.05, "freebase": 0.01, "donor": 0.01, "igb-het": 0.001,
                 "mag240m": 0.0005}
        return [cls(shape, title, small[shape]) for shape, title in titles.items()]


def load_dataset(dataset: Dataset, options: str = "", **more: Any) -> GraphSource:
    """Load a data set with options given as text, `key=value,key=value`, and `more` of them.

    Raises
    ------
    InputError
        An option that it does not have, a value of the wrong type, or what the data set says.
    """
    texts = {**split_options(options, dataset.name, dataset.options), **more}
    return dataset.load(**read_options("dataset", dataset.name, dataset.options, texts))
