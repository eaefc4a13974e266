"""Refuse what would see a part of a gradient.

Under RAF a trainer's gradients are, until they are averaged, those of all trainers' losses by its
own machine's relations. Their sums are right; what one trainer sees of them is not what plain DGL
would show it. So hooks that would be given a part are refused by name, and a gradient that a script
could look at before it is averaged is a :class:`Partial`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import state_of
from dgl_heta.raf.chain import is_link, walk, walk_below
from dgl_heta.system.nested import of_type


def check_hooks(module: nn.Module) -> None:
    """
    Raises
    ------
    HetaError
        A hook of the script's would be given a part of a gradient.
    """
    for name, parameter in module.named_parameters():
        if has_hooks(parameter):
            refuse("hook of a parameter", name=name)
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            refuse("backward hook of a module", name=name or type(part).__name__)


def has_hooks(leaf: Tensor) -> bool:
    """Return whether a script has put a hook on a leaf's gradient."""
    after = getattr(leaf, "_post_accumulate_grad_hooks", None) or {}
    return bool(leaf._backward_hooks) or any(
        not getattr(hook, "dgl_heta", False) for hook in after.values())


def check_inputs(inputs: Any, wrapped: Sequence[nn.Parameter] | None = None,
                 complete: bool = False) -> None:
    """
    Raises
    ------
    HetaError
        A tensor that is no parameter, and no rows of a DistEmbedding, would get a gradient; or a
        parameter that is none of the `wrapped` ones. Or what a merge of the same layer gave is
        read, whose rows of other trainers' seeds are not `complete`.
    """
    tensors = [x for x in of_type(Tensor, inputs) if x.requires_grad]
    leaves = [x for x in tensors if x.is_leaf] + [
        node.variable for node in walk(tensors) if hasattr(node, "variable")]
    for leaf in leaves:
        if getattr(leaf, "heta_token", False):
            if not complete:
                refuse("a merge that reads another of its layer")
            continue
        if not isinstance(leaf, nn.Parameter) and not getattr(leaf, "heta_rows", False):
            refuse("gradient of an input", shape=tuple(leaf.shape))
        if wrapped is not None and not any(leaf is p for p in wrapped):
            refuse("parameter that is not wrapped", shape=tuple(leaf.shape))


def below_merges(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Return whether an input of `autograd.grad` is not above all exchanges that the outputs
    depend on.

    Raises
    ------
    HetaError
        Such an input is no parameter.
    """
    nodes = walk(outputs)
    links = [node for node in nodes if is_link(node)]
    if not links:
        return False
    above = set(nodes) - set(walk_below(links))
    leaves = {id(node.variable) for node in above if hasattr(node, "variable")}
    below = [x for x in inputs if not (id(x) in leaves if x.is_leaf else x.grad_fn in above)]
    for x in below:
        if not isinstance(x, nn.Parameter):
            refuse("gradient below a merge", shape=tuple(x.shape))
    return bool(below)


class Partial(Tensor):
    """A gradient that is not averaged yet: a machine's part of it, for the seeds of all trainers.

    The parts of all trainers sum to what gradients of plain DGL sum to. So a part may be copied,
    laid out anew, scaled and added up; after `torch.distributed.all_reduce` it is as any tensor.
    What is not linear in it (a norm, clipping, a step of an optimizer) is refused before that.

    Attributes
    ----------
    summed : whether it was summed over the trainers; those with the same memory have it in common.
    """

    summed: list[bool]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        full: str = getattr(func, "__name__", str(func))
        name = full.strip("_")
        if name in ("get", "set"):
            name += f" {getattr(getattr(func, '__self__', None), '__name__', '')}"
        parts = [x for x in tree_flatten(args[0] if name in _LIKE else (args, kwargs))[0]
                 if is_part(x)]
        writes = name in _WRITING or (full.endswith("_") and not full.endswith("__")) or (
            full.startswith("__i") and name != "iter")
        if parts and not (_linear(name, args, parts) and not (writes and _steps(args[0]))):
            _refuse(parts[0], f"used by {name}")
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
            if not parts or name in _ABOUT:
                return out
            if name in _FILLING and len(parts) == 1 and parts[0] is args[0]:
                parts[0].summed[0] = True
                return out
            return tree_map(lambda x: _part(x, parts) if isinstance(x, Tensor) else x, out)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.clone()


# Names of functions without the underscores around them: `__add__`, `add` and `add_` are one.
_ABOUT = frozenset("""size dim numel nelement ndimension stride element_size storage_offset len hash
    is_contiguous is_floating_point is_complex is_signed get_device data_ptr untyped_storage
    zeros_like ones_like empty_like new_zeros new_ones new_empty new_full requires_grad""".split())
"""Functions that tell nothing of the numbers."""
_LIKE = ("unflatten_dense_tensors", "view_as", "reshape_as", "expand_as", "type_as")
"""Functions that take but the form of their second argument."""
_FILLING = ("copy", "zero", "fill", "set data")
_WRITING = ("setitem", "set data")
_SUMS = frozenset("""clone detach contiguous view view_as reshape reshape_as flatten unflatten ravel
    squeeze unsqueeze transpose t permute narrow select split split_with_sizes chunk unbind expand
    expand_as repeat getitem setitem iter index_select cat concat concatenate stack hstack vstack
    sum mean neg to type type_as float double half bfloat16 cpu cuda to_dense add radd iadd sub rsub
    isub foreach_add foreach_sub foreach_copy foreach_zero flatten_dense_tensors
    unflatten_dense_tensors""".split()) | {*_FILLING}
_SCALED = frozenset("mul rmul imul div truediv itruediv idiv foreach_mul foreach_div".split())


def _linear(name: str, args: Sequence[Any], parts: Sequence[Partial]) -> bool:
    """Return whether a function is linear in parts of gradients.

    A function of sums of parts has the sums of its results; of a scaled one the other factor must
    be no part.
    """
    if name in _SCALED:
        first = args[0] if args else None
        return isinstance(first, list | tuple) or (len(parts) == 1 and (
            "div" not in name or parts[0] is first))
    return name in _SUMS or name in _ABOUT or name.startswith("get ") or name == "set grad"


def _part(result: Tensor, parts: Sequence[Partial]) -> Tensor:
    """Return what is computed of parts, as a part."""
    if isinstance(result, Partial):  # written to
        result.summed[0] = False
        return result
    if not result.is_floating_point() or result.layout != torch.strided:
        return result
    new = result.as_subclass(Partial)
    # Views and `.data` of a part are summed when it is: they share its memory, and its list.
    memory = result.untyped_storage().data_ptr()
    new.summed = next((part.summed for part in parts
                        if part.untyped_storage().data_ptr() == memory), [False])
    return new


def is_part(item: Any) -> bool:
    """Return whether a value is a gradient that is not summed over the trainers yet."""
    return not item.summed[0] if isinstance(item, Partial) else getattr(item, "heta_part", False)


class _Marked:
    """Parameters that have had a partial gradient; every optimizer's step is checked for them."""

    def __init__(self) -> None:
        self.parameters: Any = WeakTensorKeyDictionary()
        # Sparse gradients can be no subclass, so only this sees what an optimizer does with them.
        self._hook = register_optimizer_step_pre_hook(_check_step)

    def close(self) -> None:
        self._hook.remove()


def _steps(written: Any) -> bool:
    """Return whether what is written to is a parameter that had a part, or shows its memory: a step
    by hand (`p.data.sub_(lr * p.grad)`)."""
    memory = {x.untyped_storage().data_ptr() for x in tree_flatten(written)[0]
              if isinstance(x, Tensor) and not isinstance(x, Partial) and not x.is_sparse}
    return bool(memory) and any(p.untyped_storage().data_ptr() in memory
                                for p in state_of(_Marked).parameters)


def _refuse(grad: Tensor, how: str) -> NoReturn:
    refuse("partial gradient", shape=tuple(grad.shape), how=how)


def mark(parameter: Tensor) -> None:
    """Mark the gradient of a parameter below a merge, which nobody averages in this backward pass.
    """
    grad = parameter.grad
    if grad is None:
        return
    state_of(_Marked).parameters[parameter] = True
    if grad.layout == torch.strided:
        part = grad.as_subclass(Partial)
        part.summed = [False]
        parameter.grad = part
        return
    grad.heta_part = True  # type: ignore[attr-defined]  # sparse ones can be no subclass


def parts() -> list[Tensor]:
    """Return the parameters whose gradients are parts now; no rows of a DistEmbedding."""
    return [leaf for leaf in state_of(_Marked).parameters if is_part(leaf.grad)
            and not getattr(leaf, "heta_rows", False) and not getattr(leaf, "heta_token", False)]


mark.dgl_heta = True  # type: ignore[attr-defined]


def _check_step(optimizer: Any, *_: Any) -> None:
    """Refuse an optimizer's step by its name, and not by that of some operation in it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_part(parameter.grad):
                _refuse(parameter, f"used by {type(optimizer).__name__}.step")


def unmark(parameters: Iterable[Tensor]) -> None:
    """Let gradients be any tensors again: they are averaged now."""
    for parameter in parameters:
        if isinstance(parameter.grad, Partial):
            parameter.grad = whole(parameter.grad)
        elif parameter.grad is not None and parameter.grad.layout != torch.strided:
            parameter.grad.heta_part = False  # type: ignore[attr-defined]


def whole(grad: Tensor) -> Tensor:
    """Return the numbers of a gradient, for who knows whose they are."""
    with torch._C.DisableTorchFunctionSubclass():
        return grad.as_subclass(Tensor) if isinstance(grad, Partial) else grad


def watch(parameter: Tensor) -> None:
    """Mark a parameter's gradients from now on."""
    parameter.register_post_accumulate_grad_hook(mark)


def summed(tensor: Any, op: Any, everybody: bool) -> None:
    """Note that a part of a gradient is reduced over trainers, over `everybody` or some.

    Raises
    ------
    HetaError
        It is not summed.
    """
    # The parts sum to what plain DGL's gradients sum to; no other reduction has such a meaning.
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        _refuse(tensor, f"reduced by {op}")
    if everybody and isinstance(tensor, Partial):
        tensor.summed[0] = True
    elif everybody:
        tensor.heta_part = False
