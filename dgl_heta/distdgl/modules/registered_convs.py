"""Classes that merge relations as DGL's HeteroGraphConv does: those of other programs, too.

DGL's own is patched while dgl-heta is enabled. A class that is registered here has its `forward`
replaced once; the replacement hands over to the original for all but RAF blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.system.optional import optional

Class = TypeVar("Class", bound=type)
KEYS = ("canonical", "name")


@dataclass(frozen=True)
class Called:
    """How one class is called.

    Attributes
    ----------
    keys : whether `mod_args` and `mod_kwargs` have canonical edge types for keys, or their names.
    """

    keys: str = "name"

    def of(self, arguments: Mapping[Any, Any] | None, relation: Relation, default: Any) -> Any:
        """Return what `mod_args` or `mod_kwargs` have for a relation."""
        key = tuple(relation) if self.keys == "canonical" else relation.etype
        return (arguments or {}).get(key, default)


DGLS = Called()
_REGISTERED = "heta_called"
"""The attribute of a registered class that says how it is called. It stands on the class, which may
be registered before anything is enabled and is not forgotten after."""


@overload
def register_hetero_conv(cls: Class, *, keys: str = ...) -> Class: ...


@overload
def register_hetero_conv(cls: None = ..., *, keys: str = ...) -> Callable[[Class], Class]: ...


def register_hetero_conv(cls: Any = None, *, keys: str = "canonical") -> Any:
    """Let a class of modules merge relations over the machines, as `dgl.nn.HeteroGraphConv` does.

    Each relation's own module then runs on the machine that has the relation, and the merge over
    relations goes over the group. Blocks of meta-partitioned graphs refuse the edges that the
    class's own `forward` would go through; everything else still gets that `forward`.

    Parameters
    ----------
    cls : its instances have what DGL's class has: `_get_module(canonical_etype)`, which gives a
        relation's module or raises KeyError, and `agg_fn(outputs, ntype)`, the merge.
        `forward(g, inputs, mod_args=None, mod_kwargs=None)` takes as `inputs` node type → rows of
        the sources; or a pair, with those of the destinations second; or a triple, whose third
        maps relations to rows of edges, which their modules are given as a third part.
    keys : what the keys of `mod_args` and `mod_kwargs` are: "canonical" edge types, or their
        "name" as in DGL's class.

    Returns
    -------
    The class, so that it can be used as a decorator, with or without `keys`.

    Raises
    ------
    InputError
        The class has no `forward` of its own or no `_get_module`; `keys` is something else.

    Examples
    --------
    >>> import dgl_heta
    >>> @dgl_heta.register_hetero_conv
    ... class Convolutions(torch.nn.Module):
    ...     ...
    """
    if keys not in KEYS:
        raise InputError(f"keys = {keys!r} is unknown; use \"canonical\" for whole edge types or "
                         "\"name\" for their names")
    if cls is None:
        return functools.partial(register_hetero_conv, keys=keys)
    for name, there in (("forward", "forward" in vars(cls)),
                        ("_get_module", hasattr(cls, "_get_module"))):
        if not there:
            raise InputError(f"{cls.__name__} cannot be registered: it has no {name} of its own; "
                             "write it as dgl.nn.HeteroGraphConv has it")
    if _REGISTERED in vars(cls):  # a second wrapper would call the first one
        return cls
    called = Called(keys)
    setattr(cls, _REGISTERED, called)
    original = cls.forward

    @functools.wraps(original)
    def forward(self: Any, g: Any, inputs: Any, mod_args: Any = None, mod_kwargs: Any = None
                ) -> Any:
        # A RAF block, told by its method: this is imported without DGL.
        merge = getattr(g, "heta_merge", None)
        if merge is None:
            return original(self, g, inputs, mod_args, mod_kwargs)
        return merge(self, inputs, mod_args, mod_kwargs, called)

    cls.forward = forward
    return cls


def is_hetero_conv(module: Any) -> bool:
    """Return whether a module is DGL's HeteroGraphConv, or of a registered class."""
    dgl = optional("dgl.nn.pytorch.hetero", "HeteroGraphConv", "dgl")
    return isinstance(module, dgl.HeteroGraphConv) or hasattr(type(module), _REGISTERED)
