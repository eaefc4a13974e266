"""DistributedDataParallel's own options and methods, where a module wrapper stands in its place.

What does not change a result is taken; what does is honoured, or refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.versions import homes
from dgl_heta.system.patching import patch_all

_CLASS = "DistributedDataParallel"
_AVERAGING = "gradients averaged another way"
REFUSED = {
    "_register_builtin_comm_hook": "gradients would be averaged another way",
    "_register_buffer_comm_hook": "buffers would be sent another way",
    "_register_fused_optim": "the optimizer would step inside the backward pass",
    "_update_process_group": "gradients are averaged over all trainers",
    "_get_ddp_logging_data": "there is no reducer",
    "join_hook": "all trainers take equally many steps; leave torch's Join out",
    "__getstate__": "it has process groups; pickle or copy its `module`",
}


def take_options(parallel: Any, module: nn.Module, original: Any, args: Any, kwargs: Any) -> None:
    """Check the arguments of DistributedDataParallel and keep them as its attributes.

    Raises
    ------
    InputError
        One of them would change which gradients are averaged, or how.
    """
    bound = inspect.signature(original).bind(parallel, module, *args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    _check_averaging(module, given)
    _check_devices(module, given)
    devices = {p.device for p in module.parameters()}
    group = _group(given)
    parallel.device_ids = [torch.device("cuda", d) if isinstance(d, int) else torch.device(d)
                           for d in given["device_ids"] or ()] or None
    parallel.output_device = given["output_device"]
    parallel.device = next(iter(devices), torch.device("cpu"))
    parallel.device_type, parallel.dim = parallel.device.type, given["dim"]
    parallel.process_group = group if group is not None or not dist.is_initialized() else (
        dist.group.WORLD)
    parallel.parameters_to_ignore, parallel.mixed_precision = set(), None
    parallel.is_multi_device_module = len(devices) > 1
    parallel.require_backward_grad_sync = parallel.require_forward_param_sync = True
    for name in ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view",
                 "static_graph"):
        setattr(parallel, name, given[name])


def _group(given: Mapping[str, Any]) -> Any:
    mesh = given["device_mesh"]
    return given["process_group"] if mesh is None else mesh.get_group(mesh_dim=0)


def _check_averaging(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Refuse arguments that change which gradients are averaged over whom, or how."""
    for name in ("delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision"):
        if given[name] is not None:
            refuse(_AVERAGING, what=f"with {name}",
                   why="gradients would be averaged another way; leave it out")
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    if ignored:
        refuse(_AVERAGING, what=f"with parameters to ignore ({min(ignored)})",
               why="all are averaged; freeze them, or leave them out of the module")
    group = _group(given)
    if group is not None and dist.get_world_size(group) != dist.get_world_size():
        refuse(_AVERAGING, what="with a process_group of some trainers",
               why="gradients are averaged over all trainers; leave it out")


def _check_devices(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Refuse devices as DistributedDataParallel does, in its words."""
    devices = {p.device for p in module.parameters()}
    chosen = list(given["device_ids"] or ())
    if len(chosen) > 1:
        raise ValueError("device_ids can only be None or contain a single element.")
    if (chosen or given["output_device"]) and {d.type for d in devices} == {"cpu"}:
        raise ValueError(
            "DistributedDataParallel device_ids and output_device arguments only work with "
            "single-device/multiple-device GPU modules or CPU modules, but got device_ids "
            f"{chosen}, output_device {given['output_device']}, and module parameters {devices}.")


def on_device(parallel: Any, inputs: Any) -> Any:
    """Return arguments on the module's device, where `device_ids` names one."""
    if not parallel.device_ids:
        return inputs
    (device,) = parallel.device_ids
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, inputs)


@contextmanager
def unsynchronized(parallel: Any) -> Iterator[None]:
    """Let gradients of what is computed meanwhile accumulate without being averaged."""
    before, parallel.require_backward_grad_sync = parallel.require_backward_grad_sync, False
    try:
        yield
    finally:
        parallel.require_backward_grad_sync = before


def on_wrapped(method: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return what makes a patch of a method: `method` on modules that a wrapper of ours serves."""
    def make(original: Any) -> Any:
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Looked up in the instance: attributes of a module that has not been made yet fail.
            served = self.__dict__.get("heta") is not None
            return (method if served else original)(self, *args, **kwargs)
        return patched
    return make


def _refusing(name: str, why: str) -> Callable[[Any], Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(_AVERAGING, what=f"with {name}", why=why)
    return on_wrapped(method)


def _register_comm_hook(self: Any, state: Any, hook: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    # The state of other hooks is no process group, so it is looked at for this one alone.
    same = hook is allreduce_hook and (
        state is None or dist.get_world_size(state) == dist.get_world_size())
    if not same:  # that is what is done without it
        refuse(_AVERAGING, what="with register_comm_hook",
               why="gradients would be averaged another way; leave the hook out")


def _set_static_graph(self: Any) -> None:
    self.static_graph = True


def _join(self: Any, *args: Any, **kwargs: Any) -> Any:
    return nullcontext()


_NO_REDUCER = "there is no reducer"
PATCHES = (
    *patch_all(homes(_CLASS, "train"), on_wrapped(nn.Module.train), _NO_REDUCER),
    *patch_all(homes(_CLASS, "no_sync"), on_wrapped(unsynchronized), _NO_REDUCER),
    *patch_all(homes(_CLASS, "join"), on_wrapped(_join), _NO_REDUCER),
    *patch_all(homes(_CLASS, "register_comm_hook"), on_wrapped(_register_comm_hook),
               "refuse what would average another way"),
    *patch_all(homes(_CLASS, "_set_static_graph"), on_wrapped(_set_static_graph), _NO_REDUCER),
    *(patch for name, why in REFUSED.items() for patch in patch_all(
        homes(_CLASS, name), _refusing(name, why), "refuse it by name")),
)
