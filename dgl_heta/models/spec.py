"""The arguments from which a model is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.metatree import Metapath
from dgl_heta.settings import ModelSettings

_DEFAULT = ModelSettings()


@dataclass(frozen=True)
class ModelSpec:
    """The arguments from which a model provider builds a model; defaults are the settings'.

    Attributes
    ----------
    input_dims : width of the input features per node type; learnable features are `hidden`
        wide.
    static : node types with static features, which are projected to `hidden`.
    num_classes : target node type → number of outputs.
    subsets : of relations, for models over them.
    paths : for models over metapaths, target → metapaths with the width of their inputs.
    """

    schema: Schema
    input_dims: Mapping[str, int]
    static: frozenset[str]
    num_classes: Mapping[str, int]
    layers: int
    hidden: int = _DEFAULT.hidden
    heads: int = _DEFAULT.heads
    bases: int = _DEFAULT.bases
    self_loop: bool = _DEFAULT.self_loop
    layer_norm: bool = _DEFAULT.layer_norm
    dropout: float = _DEFAULT.dropout
    aggregate: str = _DEFAULT.aggregate
    reduce: str = _DEFAULT.reduce
    subsets: int = _DEFAULT.subsets
    paths: Mapping[str, tuple[tuple[Metapath, int], ...]] = field(default_factory=dict)


def slot(name: str | Relation) -> str:
    """A key for a node type or relation that `nn.ModuleDict` accepts; different ones differ."""
    parts = (name,) if isinstance(name, str) else name
    return "of " + ":".join(part.replace("%", "%25").replace(".", "%2E").replace(":", "%3A")
                            for part in parts)
