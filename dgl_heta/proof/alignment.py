"""Nodes of the rows in a call's arguments, and the same arguments for other nodes.

A batch of L layers has L + 1 levels of node ids: 0 the input nodes, k the destinations of layer k,
L the worker's own seeds; each level is the beginning of the one before. A tensor with as many rows
as a level has nodes of a type holds a row for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.proof.copies import NotProvedError
from dgl_heta.proof.gather import CAUSE, Ids, projections
from dgl_heta.system.nested import Path

Level = tuple[int, str]
_SMALL = 1 << 16
"""Numbers up to which an argument that has no rows of nodes is looked at."""


@dataclass
class Argument:
    """A tensor among the arguments of a call.

    Attributes
    ----------
    level : level and node type of its rows; None for one that is the same for all nodes.
    given : whether this worker was given it (else it is empty).
    everywhere : whether all workers were given all rows of this level.
    exact : whether it is no result of a computation, so that workers have equal rows.
    learned : whether its gradient is looked at.
    """

    path: Path
    tensor: Tensor
    level: Level | None
    given: bool
    everywhere: bool
    exact: bool
    learned: bool


def replaced(value: Any, at: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """The same structure with every item that is no container replaced."""
    if isinstance(value, Mapping):
        return {key: replaced(item, at, (*path, key)) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(x, at, (*path, i)) for i, x in enumerate(value)))
    if isinstance(value, list | tuple):
        return type(value)(replaced(x, at, (*path, i)) for i, x in enumerate(value))
    return at(path, value)


def check_items(value: Any, known: Callable[[Any], bool]) -> None:
    """
    Raises
    ------
    NotProvedError
        There is something that is no tensor, number, text, and not `known`.
    """
    def check(path: Path, item: Any) -> None:
        if not (isinstance(item, Tensor | str | int | float | bool | type(None) | torch.dtype
                           | torch.device) or callable(item) or known(item)):
            raise NotProvedError(f"the model is given an argument of type {type(item).__name__}, "
                                 "of which it is not known what belongs to which node")
    replaced(value, check)


def candidates(path: Path, tensor: Tensor, ids: Sequence[Ids], first: int) -> list[Level]:
    """Levels with as many nodes as a tensor has rows, the most likely one first.

    Parameters
    ----------
    first : the level that the first of the call's blocks starts from.
    """
    if path[0] == "frames":  # of a block: its layer, "src" or "dst", the node type, the name
        return [(path[1] - (path[2] == "src"), path[3])]
    if not tensor.dim():
        return []
    types = [p for p in path if p in ids[0]][-1:] or list(ids[0])
    last = len(ids) - 1
    order = [first, last, *(k for k in range(last) if k != first)]
    fitting = [(k, t) for k in dict.fromkeys(order) for t in types if len(ids[k][t]) == len(tensor)]
    if tensor.dtype == torch.int64 and tensor.dim() == 1 and len(tensor):
        array = tensor.cpu().numpy()
        named = [(k, t) for k, t in fitting if np.array_equal(ids[k][t], array)]
        return named or fitting
    return fitting


def agree(comm: Comm, tensors: Iterable[tuple[Path, Tensor, list[Level]]]) -> list[Argument]:
    """The arguments of all workers of a group, in one order, with what their rows are.

    Raises
    ------
    NotProvedError
        It is not clear of which nodes a tensor has rows; on all workers alike.
    """
    own = {_text(path): (path, tensor, levels) for path, tensor, levels in tensors}
    every = comm.all_gather_json([
        [name, list(path), [list(level) for level in levels], list(tensor.shape),
         str(tensor.dtype).removeprefix("torch."), bool(tensor.requires_grad),
         bool(tensor.grad_fn is not None),
         projections(tensor.detach().reshape(1, -1))[0].tolist()
         if not levels and tensor.numel() <= _SMALL else None, tensor.device.type]
        for name, (path, tensor, levels) in own.items()], CAUSE)
    of: dict[str, list[Any]] = {}
    for worker in every:
        for entry in worker:
            of.setdefault(entry[0], []).append(entry)
    arguments = []
    for name in sorted(of):
        entries = of[name]
        path = own[name][0] if name in own else tuple(entries[0][1])
        shapes = {tuple(e[3][1:]) for e in entries}
        kinds = {e[4] for e in entries}
        many = [e for e in entries if not e[3] or e[3][0]] or entries
        shared = [tuple(level) for level in many[0][2]
                  if all(level in e[2] for e in many)]
        types = {t for _, t in shared}
        if len(kinds) > 1 or (len(shapes) > 1 and shared):
            raise NotProvedError(f"argument {show(path)} has another shape or type of numbers on "
                                 "another trainer")
        constant = len(entries) == len(every) and len({str((e[3], e[7])) for e in entries}) == 1
        level: Level | None = None
        if len(types) > 1:
            raise NotProvedError(f"argument {show(path)} has as many rows as there are nodes of "
                                 f"{' and of '.join(sorted(types))}, so it is not known of which")
        if shared:
            level = shared[0]
        elif not (constant or many[0][3]):
            raise NotProvedError(f"argument {show(path)} is not the same number on all trainers")
        elif not (constant and entries[0][7] is not None):
            raise NotProvedError(f"argument {show(path)} of shape {tuple(many[0][3])} has not as "
                                 "many rows as any layer of the batch has nodes")
        tensor = own[name][1] if name in own else torch.empty(
            (0, *many[0][3][1:]), dtype=getattr(torch, many[0][4]), device=next(
                (x.device for _, x, _ in own.values() if x.device.type == many[0][8]), many[0][8]))
        everywhere = len(entries) == len(every) and (level is None or all(
            list(level) in e[2] for e in entries))
        arguments.append(Argument(
            path, tensor, level, name in own and (level is None or level in own[name][2]),
            everywhere, not any(e[6] for e in entries), any(e[5] for e in entries)))
    return arguments


def _text(path: Path) -> str:
    return "/".join(map(str, path))


def show(path: Path) -> str:
    """A path for people: `features['paper']`."""
    first, *rest = path or ("output",)
    return str(first) + "".join(f"[{key!r}]" for key in rest)


def filled(value: Any, replacements: Mapping[Path, Any], other: Callable[[Any], Any]) -> Any:
    """Arguments with other tensors; what another worker alone was given is put into its dict.

    Parameters
    ----------
    replacements : path → what stands there.
    other : replaces everything else.
    """
    filled_in = replaced(value, lambda path, item: (
        replacements[path] if path in replacements else other(item)))
    for path, item in replacements.items():
        container = filled_in
        for key in path[:-1]:
            try:
                container = container[key]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if isinstance(container, dict) and path[-1] not in container:
                container[path[-1]] = item
    return filled_in
