"""`edge_index` of a relation whose edges are not all on this worker."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from dgl_heta import InputError, Relation
from dgl_heta_pyg.hops import Origin

_KEEP = {"narrow", "contiguous", "to", "cpu", "cuda", "detach", "pin_memory"}
_ASK = {"__get__", "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride",
        "is_contiguous", "is_floating_point", "is_complex", "is_shared", "is_pinned", "get_device",
        "untyped_storage", "storage_offset", "data_ptr", "element_size", "__hash__"}


class RelationEdges(Tensor):
    """The edges of one relation, (2, edges) int64, for convolutions alone.

    Whoever else reads them would take those of this worker for all. It may be asked for its size
    and trimmed (`trim_to_layer`). `relation` is None for all of them, in one graph.
    """

    origin: Origin
    relation: Relation | None

    @classmethod
    def of(cls, edges: Tensor, relation: Relation | None, origin: Origin) -> RelationEdges:
        guarded = edges.as_subclass(cls)
        guarded.relation, guarded.origin = relation, origin
        return guarded

    def open(self) -> Tensor:
        """The edges as a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        flat = [x for of in args for x in (of if isinstance(of, list | tuple) else [of])]
        own = next((x for x in flat if isinstance(x, RelationEdges)), None)
        if name == "__repr__" and own is not None:
            return f"RelationEdges('{own.relation or 'all'}', {own.size(1)})"
        if own is None or own is not args[0] or name not in (_KEEP | _ASK):
            raise _read_by(name, own)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if name in _KEEP:
            return cls.of(out, own.relation, own.origin)
        if isinstance(out, Tensor):  # a property such as T has the edges, too
            raise _read_by(getattr(getattr(func, "__self__", None), "__name__", name), own)
        return out


def _read_by(name: str, edges: RelationEdges | None) -> InputError:
    """The refusal of a function of torch that reads edges."""
    what = f" of '{edges.relation or 'all'}'" if edges is not None else ""
    return InputError(
        f"edge_index{what} is read by torch's {name}, outside of a convolution that "
        "dgl_heta_pyg.distribute(model, part) knows; on several workers these edges are some of "
        "the relation's: use a MessagePassing convolution for each relation, in the model that was "
        "given to distribute, or one worker (--parts 1)")


def edges_in(value: Any) -> list[RelationEdges]:
    """The edges that a model is given."""
    return [x for x in tree_flatten(value)[0] if isinstance(x, RelationEdges)]


def opened(value: Any) -> Any:
    """The value with plain tensors of edges."""
    return tree_map(lambda x: x.open() if isinstance(x, RelationEdges) else x, value)
