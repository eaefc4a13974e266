"""A relation's own module inside HeteroGraphConv: its call, and its state on machines that do not
run it."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dgl
import torch
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv
from torch import Tensor, nn

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.blocks.relation_graph import RelationGraph
from dgl_heta.distdgl.refusals import TABLE, refuse
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock

log = logging.getLogger("dgl_heta")


def call_module(module: Any, edges: RelationBlock, graph: RelationGraph, rows: Any,
                args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return what a relation's module gives for the rows of both ends, (edges.num_rows, …); None if
    it fails where there are no rows.

    Raises
    ------
    HetaError
        It reads the ids of edges; it returned no rows.
    """
    relation = tuple(edges.relation)
    try:
        value = module(graph, rows, *args, **kwargs)
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (dgl.EID,):
            raise TABLE["a module that reads edge ids"].error(relation=relation) from error
        if edges.num_rows or isinstance(error, HetaError):
            raise
        # Other trainers may have rows, and wait for this one in the merge.
        fails_without_rows(module, edges.relation.dst, error)
        return None
    if not isinstance(value, Tensor):
        refuse("a module that returns no tensor", relation=relation, kind=type(value).__name__)
    if value.dim() == 0 or len(value) != edges.num_rows:
        refuse("a module that returns other rows", relation=relation, shape=tuple(value.shape),
               rows=edges.num_rows)
    return value


class _Logged:
    """Functions and classes of modules of which a line was logged."""

    def __init__(self) -> None:
        self._of: set[Any] = set()

    def first(self, what: Any) -> bool:
        """Return whether it is asked for the first time, and remember it."""
        known = what in self._of
        self._of.add(what)
        return not known


def fails_without_rows(function: Any, ntype: str, error: Exception) -> None:
    """Log, once for each, that what a script merges relations with fails where a batch reaches no
    node of a type: it is left out there, as by DistDGL. In one process it would fail."""
    if state_of(_Logged).first(function):
        log.warning(
            "%s fails for a batch that reaches no node of '%s' (%s: %s); it is left out there, and "
            "parameters that nothing else uses have no gradient (None) in place of zeros",
            getattr(function, '__name__', type(function).__name__), ntype,
            type(error).__name__, error)


def runs_alone(relation: Relation, module: Any) -> None:
    """Log, once for each class of modules, that one is called by itself and why."""
    kind = type(module)
    if state_of(_Logged).first(kind):
        why = ("hooks, options or inputs of it ask for its own forward"
               if kind in (GraphConv, GATConv, SAGEConv) else "it is none of DGL's GraphConv, "
               "GATConv and SAGEConv, of which all relations are computed together")
        log.info("%s of relation %s runs relation by relation: %s", kind.__name__, relation, why)


@dataclass
class _Buffers:
    """The buffers of the relations' modules of a HeteroGraphConv.

    Attributes
    ----------
    modules : relations whose modules have buffers.
    common : (module, buffer's name) that several relations' modules have.
    """

    modules: list[tuple[Relation, nn.Module]]
    common: list[tuple[nn.Module, str]]

    def versions(self) -> list[tuple[int, int]]:
        """Return for each common buffer what is another number once it was written to."""
        buffers = (module._buffers.get(name) for module, name in self.common)
        return [(id(b), 0 if b is None or b.is_inference() else b._version) for b in buffers]


class _BuffersOf:
    """HeteroGraphConv → the buffers of its modules."""

    def __init__(self) -> None:
        self.conv: weakref.WeakKeyDictionary[Any, _Buffers] = weakref.WeakKeyDictionary()


@contextmanager
def shared_buffers(conv: Any, layer: Layer, called: Collection[Relation]) -> Iterator[None]:
    """Let the body call modules of relations; bring what they keep in buffers (running statistics,
    the vectors of spectral_norm) from the trainer that ran them to the others of its group.

    Raises
    ------
    HetaError
        What several relations have in common has changed, on any trainer.
    """
    # Collective in training, if a module has buffers: an all-reduce of who ran which relation, then
    # each buffer.
    buffers = _buffers_of(conv, layer)
    before = buffers.versions() if buffers else []
    yield
    if buffers:
        _share(buffers, before, layer, called)


def _buffers_of(conv: Any, layer: Layer) -> _Buffers | None:
    """Return the buffers of a HeteroGraphConv's modules, if they may change and there are any."""
    if layer.session.group.size == 1 or not conv.training:
        return None
    known = state_of(_BuffersOf).conv
    if conv not in known:
        modules, users = [], Counter[tuple[nn.Module, str]]()
        for relation in layer.session.store.schema.relations:
            try:
                module = conv._get_module(tuple(relation))
            except KeyError:
                continue
            if any(True for _ in module.buffers()):
                modules.append((relation, module))
            users.update((part, name) for part in module.modules() for name, _ in
                         part.named_buffers(recurse=False))
        known[conv] = _Buffers(modules, [buffer for buffer, n in users.items() if n > 1])
    return known[conv] if known[conv].modules else None


def _share(buffers: _Buffers, before: list[tuple[int, int]], layer: Layer,
           called: Collection[Relation]) -> None:
    group = layer.session.group
    changed = [number for number, (old, new) in enumerate(zip(before, buffers.versions()))
               if old != new]
    told = torch.tensor([min(changed, default=len(before)),
                         *(group.rank if r in called else group.size for r, _ in buffers.modules)])
    # The lowest rank of those that ran a relation, which may be several; `group.size` is nobody.
    first, *runners = group.all_reduce(told, "min", "control").tolist()
    if first < len(before):
        module, name = buffers.common[first]
        refuse("a buffer that several relations change", buffer=name, module=type(module).__name__)
    for (_, module), runner in zip(buffers.modules, runners):
        if runner == group.size:
            continue
        sizes = [int(rank == runner) for rank in range(group.size)]
        for buffer in module.buffers():
            if buffer.numel():
                row = buffer.detach().reshape(1, -1)
                sent = group.all_gather_rows(row[:sizes[group.rank]], sizes, "control")
                # Not through autograd, nor as a new version: the forward pass has read it.
                buffer.data.copy_(sent.view_as(buffer))
