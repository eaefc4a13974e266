"""What a drawn program is: a model and a training loop, as values that JSON has."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Child:
    """A relation's own module."""

    kind: str
    """A name in :data:`tests.support.drawn.children.CHILDREN`."""
    options: dict[str, Any] = field(default_factory=dict)
    around: list[str] = field(default_factory=list)
    """Names in :data:`tests.support.drawn.children.AROUND`, the innermost first."""


@dataclass(frozen=True)
class Messages:
    """What one relation does in multi_update_all."""

    message: str
    reduce: str
    apply: str = ""


@dataclass(frozen=True)
class Layer:
    """A layer: HeteroGraphConv ("hetero"), multi_update_all ("multi") or none ("own")."""

    kind: str = "hetero"
    width: int = 4
    children: list[Child] = field(default_factory=list)
    """Dealt to the relations in turn, as `deal` says."""
    deal: list[int] = field(default_factory=lambda: [0])
    shared: bool = False
    """Whether relations with the same child share one module."""
    aggregate: str = "sum"
    given: str = "states"
    """HeteroGraphConv is given states, or a pair of sources and destinations."""
    extra: str = ""
    """mod_args, mod_kwargs: a name in :data:`tests.support.drawn.model.EXTRAS`."""
    without: list[str] = field(default_factory=list)
    """Node types whose states are not given to the layer."""
    messages: list[Messages] = field(default_factory=list)
    fields: str = "same"
    """Reduce functions write one field, or one for each relation."""
    cross: str = "sum"
    chosen: str = "all"
    """Which relations multi_update_all is given; a name in `messages.CHOICES`."""
    before: list[str] = field(default_factory=list)
    """Own operations over the block: names in `operations.OPERATIONS`."""
    after: list[str] = field(default_factory=list)
    """Steps on the states that come out: names in `operations.STEPS`."""
    self_loop: bool = False


@dataclass(frozen=True)
class Loop:
    """A training loop."""

    style: str = "usual"
    """A name in :data:`tests.support.drawn.loop.STYLES`."""
    extras: list[str] = field(default_factory=list)
    """Names in :data:`tests.support.drawn.loop.EXTRAS`."""
    optimizer: str = "Adam"
    weight_decay: float = 0.0
    batch: int = 12
    steps: int = 2
    epochs: int = 1


@dataclass(frozen=True)
class Program:
    """A model and a loop."""

    layers: list[Layer]
    loop: Loop = field(default_factory=Loop)
    inputs: list[str] = field(default_factory=list)
    """Names in :data:`tests.support.drawn.model.INPUTS`."""
    head: str = "inside"
    """A linear layer "inside" the wrapped module, "outside" it in a module of its own, or "none":
    then the last layer's width is the number of classes."""
    jumping: bool = False
    first_width: int = 4


def to_json(program: Program) -> dict[str, Any]:
    return asdict(program)


def from_json(data: dict[str, Any]) -> Program:
    layers = [Layer(**{**layer, "children": [Child(**c) for c in layer["children"]],
                       "messages": [Messages(**m) for m in layer["messages"]]})
              for layer in data["layers"]]
    return Program(**{**data, "layers": layers, "loop": Loop(**data["loop"])})
