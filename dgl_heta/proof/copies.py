"""Copies of modules for a proof: in fp64, with no zeros, without the script's side effects."""

from __future__ import annotations

import copy
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dgl_heta.proof.outside import GENERATORS

PARAMETERS = 1 << 27
"""Numbers in a module beyond which it is not copied."""
_LARGE = 1 << 16
"""Numbers in an `nn.Embedding` from which on only the rows that are read are copied."""
_NOISE = 0.05


class NotProvedError(Exception):
    """A step cannot be proved; the text says why."""


Read = Callable[[str, Tensor, Tensor], Tensor]
"""A read of rows: the table's name, ids and rows; returns what the module is given for them."""


class EmbeddingRows(nn.Module):
    """Stands for an `nn.Embedding` in a copy: of a large table only what is read is copied."""

    def __init__(self, name: str, table: nn.Embedding, read: Read) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self._read = lambda ids: read(name, ids, table.weight.detach()[ids])

    def forward(self, ids: Tensor) -> Tensor:
        return self._read(ids)  # type: ignore[no-any-return]


class Unwrapped(nn.Module):
    """Stands for a DistributedDataParallel in a copy."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel."""
    while isinstance(module, DistributedDataParallel):
        module = module.module
    return module


def noise(seed: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Random numbers of a tensor's shape, the same on all workers; the script's generator stays."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.randn(like.shape, generator=generator, dtype=dtype).to(like.device)


def id_noise(ids: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(ids, width), numbers about 1 in size that follow from id and column."""
    column = torch.arange(1, width + 1, dtype=torch.float64, device=ids.device)
    return torch.sin(ids.to(torch.float64)[:, None] * 0.7390851 + column * 2.3561944).to(dtype)


def perturbed(value: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows by id with something added, so that zeros are none."""
    rows = value.detach().to(dtype)
    if not rows.is_floating_point() or rows.dim() < 2:
        return rows
    flat = id_noise(ids.reshape(-1).to(rows.device), rows.shape[-1], dtype)
    return rows + _NOISE * flat.view(*ids.shape, *[1] * (rows.dim() - ids.dim() - 1),
                                       rows.shape[-1])


def copied(module: nn.Module, dtype: torch.dtype, seed: int, shared: Callable[[Any], bool],
           read: Read, objects: Iterable[Any]) -> nn.Module:
    """A copy of a module with perturbed parameters of another dtype.

    Dropout is the identity in it, batch normalisation uses its running statistics; other parts
    stay as they are, in training as in evaluation.

    Parameters
    ----------
    seed : of what is added to parameters, the same on all workers.
    shared : whether an object that a module refers to is used as it is.
    read : for large tables.
    objects : what :func:`reached` finds.

    Raises
    ------
    NotProvedError
        It is too large, or something in it cannot be copied.
    """
    memo: dict[int, Any] = {}
    parts = dict(module.named_modules())
    large = {id(m.weight) for m in parts.values() if _by_rows(m)}
    whole = [p for p in module.parameters() if id(p) not in large]
    if sum(p.numel() for p in whole) > PARAMETERS:
        raise NotProvedError(f"{type(module).__name__} has more than {PARAMETERS} parameters")
    for number, parameter in enumerate(whole):
        value = parameter.detach()
        if value.is_floating_point():
            value = value.to(dtype)
            value = value + _NOISE * noise(seed + number, value, dtype)
        memo[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
    for name, part in parts.items():
        if _by_rows(part):
            memo[id(part)] = EmbeddingRows(name, part, read)  # type: ignore[arg-type]
    for value in objects:
        if id(value) in memo:
            continue
        if isinstance(value, Tensor):
            copy = value.detach().clone()
            memo[id(value)] = copy.to(dtype) if copy.is_floating_point() else copy
        elif shared(value) or isinstance(value, GENERATORS):
            memo[id(value)] = value
    try:
        twin = _twin(module, memo)
    except Exception as error:
        raise NotProvedError(f"{type(module).__name__} cannot be copied: {error}") from error
    for part in twin.modules():
        _quieten(part, memo)
    return twin


def _twin(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy of a module, without DistributedDataParallel. `copy.deepcopy` takes long
    for what every module has: dictionaries of parameters, of modules and of hooks, most of them
    empty."""
    usual = [part for part in module.modules() if id(part) not in memo and _is_usual(type(part))]
    for part in usual:
        memo[id(part)] = object.__new__(type(part))
    for part in module.modules():
        if isinstance(part, DistributedDataParallel):
            memo[id(part)] = Unwrapped(copy.deepcopy(unwrap(part), memo))
    # From within: what copies itself, as a `torch.fx.GraphModule` does, looks at its parts.
    for part in reversed(usual):
        for name, value in part.__getstate__().items():
            if type(value) in (dict, OrderedDict) and (not value or name in _REGISTERED):
                value = type(value)((key, copy.deepcopy(x, memo)) for key, x in value.items())
            else:
                value = copy.deepcopy(value, memo)
            vars(memo[id(part)])[name] = value
    return copy.deepcopy(module, memo)


_REGISTERED = ("_parameters", "_buffers", "_modules")


def _is_usual(kind: type[nn.Module]) -> bool:
    """Return whether a class leaves the copying of its modules to `nn.Module`."""
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in (
        "__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__slots__"))


def _by_rows(module: nn.Module) -> bool:
    """Return whether a module is a large table that :class:`EmbeddingRows` can stand for."""
    return (type(module) is nn.Embedding and module.weight.numel() > _LARGE
            and module.padding_idx is None and module.max_norm is None
            and not module.scale_grad_by_freq and not module._forward_hooks
            and not module._forward_pre_hooks and len(list(module.parameters())) == 1)


def reached(module: nn.Module) -> Iterator[Any]:
    """Buffers, tensors in attributes, and other objects that a module refers to."""
    seen: set[int] = set()

    def walk(value: Any, depth: int) -> Iterator[Any]:
        if id(value) in seen or isinstance(value, str | int | float | bool | type(None) | type) or (
                isinstance(value, dict | list | tuple | set) and not value):
            return
        seen.add(id(value))
        yield value
        if isinstance(value, Tensor) or not depth:
            return
        if isinstance(value, dict):
            children: Any = value.values()
        elif isinstance(value, list | tuple | set):
            children = value
        elif isinstance(value, nn.Module):
            children = [v for k, v in vars(value).items() if k not in ("_parameters", "_modules")]
        elif hasattr(value, "__dict__") and not isinstance(
                value, types.FunctionType | types.ModuleType) and (
                type(value).__module__.partition(".")[0] not in ("torch", "dgl", "dgl_heta")):
            children = vars(value).values()
        else:
            return
        for child in list(children):
            if not isinstance(child, nn.Module):
                yield from walk(child, depth - 1)

    for part in module.modules():
        yield from walk(part, 6)


def _quieten(part: nn.Module, memo: dict[int, Any]) -> None:
    """No dropout, no statistics of a batch, no hook that writes into the script's own objects."""
    if isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU):
        part.training = False
    elif isinstance(part, nn.modules.batchnorm._BatchNorm):
        part.training = False
        if part.running_mean is None and part.num_features:
            like = next(part.parameters(), torch.zeros(1, dtype=torch.get_default_dtype()))
            part.running_mean = like.new_zeros(part.num_features)
            part.running_var = like.new_ones(part.num_features)
    elif isinstance(part, nn.MultiheadAttention | nn.RNNBase):
        part.dropout = 0.0
    for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks,
                  part._backward_pre_hooks):
        for key, hook in hooks.items():
            hooks[key] = contained(hook, memo)


def contained(function: Any, memo: dict[int, Any]) -> Any:
    """A function that writes into copies of what it would write into.

    Raises
    ------
    NotProvedError
        It refers to something that cannot be copied.
    """
    if isinstance(function, functools.partial):
        return functools.partial(contained(function.func, memo), *function.args,
                                 **function.keywords)
    if not isinstance(function, types.FunctionType) or function.__module__.partition(".")[0] in (
            "torch", "dgl", "dgl_heta"):
        return function
    try:
        cells = tuple(types.CellType(_own(cell.cell_contents, memo))
                      for cell in function.__closure__ or ())
        defaults = copy.deepcopy(function.__defaults__, memo)
    except Exception as error:
        raise NotProvedError(f"the hook {function.__qualname__} refers to what cannot be copied: "
                             f"{error}") from error
    hook = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults,
                              cells or None)
    hook.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    return hook


def _own(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, Tensor) and id(value) not in memo:
        memo[id(value)] = value.detach().clone()
    if isinstance(value, dict | list):  # of tensors that have a graph, maybe
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            if isinstance(item, Tensor) and id(item) not in memo:
                memo[id(item)] = item.detach().clone()
    return copy.deepcopy(value, memo)
