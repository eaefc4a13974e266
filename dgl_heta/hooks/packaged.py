"""Providers that are distributions of their own: what to install for a name."""

from __future__ import annotations

DISTRIBUTIONS = {
    ("dataset", "debian"): "dgl-heta-datasets",
    ("dataset", "git"): "dgl-heta-datasets",
    ("patches", "local-partition"): "dgl-heta-catgnn",
    ("program", "graphstorm"): "dgl-heta-graphstorm",
    ("reader", "pyg"): "dgl-heta-pyg",
    ("reader", "relational"): "dgl-heta-relational",
    ("model", "nars"): "dgl-heta-precomputed",
    ("model", "sehgnn"): "dgl-heta-precomputed",
    ("model inputs", "paths"): "dgl-heta-precomputed",
    ("model inputs", "subsets"): "dgl-heta-precomputed",
}
"""(kind, name) of a provider that was part of dgl-heta → the distribution that has it."""


def to_install(kind: str, name: str) -> str:
    """Return the end of a message about an unknown name: what to install, or nothing."""
    distribution = DISTRIBUTIONS.get((kind, name))
    return f"; it is in a plugin: pip install {distribution}" if distribution else ""
