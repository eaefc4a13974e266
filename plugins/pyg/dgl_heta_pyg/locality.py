"""Whether a model takes rows of a batch together, other than along edges.

Modules that are known to do so are refused by name or merged; this finds the rest: to every node
type a row is added that no edge leads from or to, and the other rows must stay what they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from dgl_heta import HetaError
from dgl_heta.tools import Comm
from dgl_heta_pyg.hops import Hops
from dgl_heta_pyg.relation_edges import RelationEdges, edges_in

log = logging.getLogger("dgl_heta")
_LARGE = 1e4  # times the largest number of a type: a mean over many rows tells of such a row


def check_local(call: Callable[[Any, Any], Any], module: nn.Module, hops: Hops, group: Comm,
                args: Any, kwargs: Any) -> None:
    """Compare what a model returns with and without more rows, and raise a HetaError on all workers
    where it is not the same."""
    counts = {t: len(nodes) for t, nodes in hops.nodes.items()}
    one = [edges for edges in edges_in((args, kwargs)) if edges.relation is None]
    # In one graph types stand one after the other: only the last can have a row more.
    types, total = [*counts][-1:] if one else [*counts], sum(counts.values())
    if one and one[0].size(1) == total:
        return  # what is of nodes looks like what is of edges
    more = _with_row(_copied((args, kwargs)), counts, types)
    if one:
        more = tree_map(lambda x: torch.cat([x, _row(x)]) if isinstance(x, Tensor) and x.dim()
                        and len(x) == total else x, more)
    with evaluating(module):
        before, after = call(*_copied((args, kwargs))), call(*more)
        differ = float(not _same(before, after))
        if not group.all_reduce(torch.tensor([differ]), "max", "control").item():
            return
        again = call(*_copied((args, kwargs)))  # it may draw random numbers when it evaluates, too
    random, name = torch.tensor([float(not _same(before, again))]), type(module).__name__
    if not group.all_reduce(random, "max", "control").item():
        raise HetaError(f"{name} takes the nodes of a batch together, of which no worker has all "
                        "(a mean, a softmax or a normalisation over rows): rows change with one "
                        "that no edge leads to; compute each row from its own edges, or use one "
                        "worker (--parts 1)")
    log.warning("%s returns other rows each time, in evaluation, too, so that nobody checked "
                "whether it takes the nodes of a batch together", name)


def _with_row(value: Any, counts: dict[str, int], types: list[str]) -> Any:
    """Arguments with a row more for some node types, where they are rows by node type."""
    if type(value) in (list, tuple):
        return type(value)(_with_row(x, counts, types) for x in value)
    if not isinstance(value, dict):
        return value
    return {t: torch.cat([x, _row(x)]) if t in types and isinstance(x, Tensor) and len(x) == counts[
        t] else _with_row(x, counts, types) for t, x in value.items()}


def _copied(value: Any) -> Any:
    """Arguments that a model may change."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) and not isinstance(
        x, RelationEdges) else x, value)


def _row(rows: Tensor) -> Tensor:
    if not rows.is_floating_point():
        return rows[:1]
    most = rows.detach().abs().max() if rows.numel() else rows.new_ones(())
    return (most * _LARGE).expand(1, *rows.shape[1:])


def _same(one: Any, other: Any) -> bool:
    """Whether outputs are the same, but for rounding and for more rows."""
    for x, y in zip(tree_flatten(one)[0], tree_flatten(other)[0]):
        if isinstance(x, Tensor) and x.numel():
            x, y = x.detach().double(), y.detach().double()
            x, y = (x[:len(y)], y[:len(x)]) if x.dim() else (x, y)
            most = x.abs().nan_to_num(0).max().clamp(min=1e-6)
            if (x - y).abs().nan_to_num(0).max() > 1e-3 * most:
                return False
    return True


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluate without gradients in the body."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
