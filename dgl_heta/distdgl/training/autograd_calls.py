"""A script's calls of autograd and of collectives, where gradients are in parts on trainers.

Within a model a gradient is this machine's part: the parts are summed where relations merge, in the
backward pass of an exchange. So exchanges must run backward in one order on all trainers, and a
script must not look at a gradient in between.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from dgl_heta.distdgl.autograd.partial_gradients import is_part, summed
from dgl_heta.distdgl.autograd.trace import carried
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import current
from dgl_heta.distdgl.versions import homes
from dgl_heta.distdgl.watchdog import at
from dgl_heta.nn.gradient_hub import check_views
from dgl_heta.raf.backward_end import BackwardEnd
from dgl_heta.system.patching import patch_all


def _backward(original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> None:
        session = current()
        if session is None:
            with BackwardEnd.whole_pass():  # for wrappers on parts that DGL made
                original(*args, **kwargs)
        else:
            if "inputs" in kwargs:
                kwargs["inputs"] = _kept(kwargs["inputs"])
            inputs = kwargs.get("inputs")
            check_views(() if inputs is None else [inputs] if isinstance(inputs, Tensor) else
                        inputs)
            session.lacking.drop()
            # What runs inside the pass is ours, and no use of rows by the script.
            with session.scope.aside():
                session.order.backward(original, *args, **kwargs)
    return backward


def _grad(original: Any) -> Any:
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is None:
            return original(outputs, inputs, *args, **kwargs)
        outputs, inputs = _kept(outputs), _kept(inputs)
        check_views([inputs] if isinstance(inputs, Tensor) else inputs)
        with session.scope.aside():
            return session.order.grad(original, outputs, inputs, *args, **kwargs)
    return grad


def _kept(tensors: Any) -> Any:
    """Return tensors that may be gone through several times: those of an iterator
    (`module.parameters()`) in a list, others as they are."""
    return list(tensors) if isinstance(tensors, Iterator) else tensors


def _looked_at(original: Any) -> Any:
    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is not None and not self.is_leaf and session.group.size > 1 and (
                session.order.under_way and session.order.checking):
            refuse("look at a gradient inside a model", call=original.__name__)
        if session is not None and not session.order.running:
            session.scope.look(self, original.__name__)
        if session is not None and args and callable(args[0]):
            args = (_but_in_checks(args[0], session), *args[1:])
        return original(self, *args, **kwargs)
    return look


def _but_in_checks(hook: Any, session: Any) -> Any:
    """Return a script's hook that is not called where gradients are computed to look at them."""
    # The loss's dependence on rows is found by gradients of a cut graph (autograd.loss_scope): a
    # hook that counts or prints must not see those.
    @functools.wraps(hook)
    def call(grad: Any) -> Any:
        return None if session.order.cut else hook(grad)
    return call


def _subclass(original: Any) -> Any:
    def as_subclass(self: Any, cls: Any) -> Any:
        with _disable_current_modes():  # or PyTorch makes two objects of one tensor, and fails
            return carried(self, original(self, cls))
    return as_subclass


def _summing(original: Any) -> Any:
    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is not None and is_part(tensor):
            # The script averages itself: a gradient in parts is whole once it is summed over all
            # trainers of the group.
            arguments = _signature(original).bind(tensor, *args, **kwargs).arguments
            group: Any = arguments.get("group") or dist.group.WORLD
            summed(tensor, arguments.get("op", dist.ReduceOp.SUM),
                   {*session.group.ranks} <= {*dist.get_process_group_ranks(group)})
        return original(tensor, *args, **kwargs)
    return reduce


_signature = functools.cache(inspect.signature)


def _torch_barrier(original: Any) -> Any:
    def barrier(*args: Any, **kwargs: Any) -> Any:
        if current() is None or args or kwargs.get("group") is not None:
            return original(*args, **kwargs)
        with at("torch.distributed.barrier()"):
            return original(*args, **kwargs)
    return barrier


PATCHES = (
    *patch_all(homes("backward"), _backward,
               "one order of exchanges where a loss depends on several forward passes"),
    *patch_all(homes("grad"), _grad,
               "gradients of the own loss; refuse those that are in parts on several trainers"),
    *patch_all(homes("Tensor", "register_hook"), _looked_at,
               "refuse gradients that are in parts on several trainers"),
    *patch_all(homes("Tensor", "retain_grad"), _looked_at,
               "refuse gradients that are in parts on several trainers"),
    *patch_all(homes("Tensor", "as_subclass"), _subclass,
               "works while operations are looked at, at steps to prove"),
    *patch_all(homes("all_reduce"), _summing, "gradients that a script averages itself"),
    *patch_all(homes("reduce"), _summing, "gradients that a script averages itself"),
    *patch_all(homes("barrier of torch"), _torch_barrier, "say where a trainer waits"),
)
