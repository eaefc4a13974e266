"""Tell modules whose result can be computed without calling them from all others.

GraphConv, GATConv and SAGEConv inside HeteroGraphConv are computed together, in our kernels, from
their weights. What a script has hung on a module (hooks, a norm of its weights, another `forward`)
would never run then; such a module is called, as in plain DGL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv
from torch import nn
from torch.nn.modules import module as modules

Function = TypeVar("Function", bound=Callable[..., Any])

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_METHODS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl")


def own_hook(hook: Function) -> Function:
    """Mark what dgl-heta itself hangs on modules, or puts in the place of their methods, to look
    on: no result depends on it."""
    hook.heta_own = True  # type: ignore[attr-defined]
    return hook


def around(original: Callable[..., Any], listener: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that goes through a listener, which is given the original one."""
    def heard(*args: Any, **kwargs: Any) -> Any:
        return listener(original, *args, **kwargs)
    return own_hook(heard)


def is_plain_module(module: Any, kind: type[nn.Module]) -> bool:
    """Return whether a module is exactly of a class, and calling it runs that class's code alone.

    Parametrized modules are of a class of their own (`torch.nn.utils.parametrize`); the older
    weight_norm and spectral_norm are hooks; compiled modules are wrapped, or have another call.
    One with buffers (a batch norm as its activation) is not plain: they are brought to the other
    trainers of modules that are called.

    Parameters
    ----------
    kind : GraphConv, GATConv, SAGEConv, Linear or LeakyReLU.
    """
    return (type(module) is kind and _as_defined(kind) and not any(
                _hooks_in(getattr(modules, f"_global{name}")) for name in _HOOKS)
            and all(_plain(part) for part in module.modules()))


def _plain(module: nn.Module) -> bool:
    # Not by attributes: a method on the class is no method of the module's own.
    own = module.__dict__
    return (not any(_hooks_in(own.get(name) or {}) for name in _HOOKS) and "forward" not in own
            and own.get("_compiled_call_impl") is None
            and all(buffer is None for buffer in own["_buffers"].values()))


def _hooks_in(registered: Mapping[int, Any]) -> bool:
    """Return whether a script has registered a hook."""
    return any(not getattr(hook, "heta_own", False) for hook in registered.values())


def _as_defined(kind: type[nn.Module]) -> bool:
    """Return whether nobody but dgl-heta itself has put another method into the class."""
    return all(method is before or getattr(method, "heta_own", False)
               for method, before in zip(_methods(kind), _DEFINED[kind]))


def _methods(kind: type[nn.Module]) -> tuple[Any, ...]:
    return tuple(getattr(kind, name, None) for name in _METHODS)


# As they are when dgl-heta is enabled, which imports this.
_DEFINED: dict[type[nn.Module], tuple[Any, ...]] = {
    kind: _methods(kind) for kind in (GraphConv, GATConv, SAGEConv, nn.Linear, nn.LeakyReLU)}
"""Their methods as defined."""
