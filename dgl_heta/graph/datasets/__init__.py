"""Data sets by name: the Debian archive and synthetic graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.protocols import Dataset


class Debian(Dataset):
    """The Debian package archive, a frozen snapshot in the package."""

    name = "debian"
    description = "packages of the Debian archive; target: a package's section"
    options: Mapping[str, Any] = {}

    def load(self, **options: float) -> GraphSource:
        from dgl_heta.graph.datasets import debian

        return debian.load()


@dataclass(frozen=True)
class Synthetic(Dataset):
    """A seeded synthetic graph with the shape of a published one."""

    name: str
    description: str
    shape: str
    options: Mapping[str, Any]

    def load(self, **options: float) -> GraphSource:
        from dgl_heta.graph.datasets import synthetic

        return synthetic.generate(self.shape, float(options["scale"]), int(options["seed"]))

    @classmethod
    def all(cls) -> list[Synthetic]:
        """One for every published shape."""
        titles = {"mag": "ogbn-mag", "freebase": "Freebase", "donor": "Donor",
                  "igb-het": "IGB-HET", "mag240m": "MAG240M"}
        small = {"mag": 0.05, "freebase": 0.01, "donor": 0.01, "igb-het": 0.001,
                 "mag240m": 0.0005}
        return [cls(f"synthetic-{shape}", f"synthetic, shape of {title}", shape,
                    {"scale": small[shape], "seed": 0}) for shape, title in titles.items()]


def parse_dataset(text: str) -> tuple[str, dict[str, str]]:
    """`name:key=value,key=value` → name and options."""
    name, _, rest = text.partition(":")
    options = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"dataset option '{item}' is wrong; write {name}:key=value,key=value")
        options[key.strip()] = value.strip()
    return name, options


def load_dataset(dataset: Dataset, options: dict[str, str]) -> GraphSource:
    """Load a data set with options given as text."""
    values = dict(dataset.options)
    for key, text in options.items():
        if key not in values:
            raise InputError(f"dataset '{dataset.name}' has no option '{key}'; options: "
                             f"{listing(values)}" + nearest(key, values))
        try:
            values[key] = float(text)
        except ValueError:
            values[key] = math.nan
        whole = isinstance(dataset.options[key], int)
        if not math.isfinite(values[key]) or (whole and values[key] % 1):
            raise InputError(f"dataset option {key}={text} is not a {'whole ' * whole}number; the "
                             f"default of '{dataset.name}' is {key}={dataset.options[key]:g}")
    return dataset.load(**values)
