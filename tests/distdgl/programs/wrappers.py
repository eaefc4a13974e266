"""What scripts hang on modules (hooks, norms of weights), and how they wrap and average them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from tests.distdgl.programs.children import net
from tests.distdgl.programs.usual import HIDDEN, Net, train
from tests.support.programs_worker import Trainer

Change = Callable[[nn.Module], None]


def _convs(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, GraphConv | GATConv)]


def _graph(t: Trainer) -> Net:
    return net(t, lambda a, b: GraphConv(a, b, norm="right", bias=False), "sum")


def _changed(kind: str) -> Change:
    """What a script does to a GraphConv or a Linear."""
    def forward_hook(module: nn.Module) -> None:
        module.register_forward_hook(lambda _m, _x, out: out * 1.5)

    def pre_hook(module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda _m, x: (x[0], (x[1][0] * 1.5, x[1][1])))

    def backward_hook(module: nn.Module) -> None:
        module.register_full_backward_hook(
            lambda _m, gradients, _: tuple(None if g is None else g * 1.5 for g in gradients))

    def backward_pre_hook(module: nn.Module) -> None:
        module.register_full_backward_pre_hook(
            lambda _m, gradients: tuple(None if g is None else g * 1.5 for g in gradients))

    def overridden(module: nn.Module) -> None:
        before = module.forward
        module.forward = lambda *x, **named: before(*x, **named) * 1.5  # type: ignore[method-assign]

    def parametrized(module: nn.Module) -> None:
        class Scaled(nn.Module):
            def forward(self, weight: Tensor) -> Tensor:
                return weight * 1.5
        nn.utils.parametrize.register_parametrization(module, "weight", Scaled())

    def weight_norm(module: nn.Module) -> None:
        parametrizations.weight_norm(module)

    def spectral_norm(module: nn.Module) -> None:
        parametrizations.spectral_norm(module)

    def old_weight(module: nn.Module) -> None:
        with warnings.catch_warnings(action="ignore"):
            old_weight_norm(module)

    def old_spectral(module: nn.Module) -> None:
        with warnings.catch_warnings(action="ignore"):
            old_spectral_norm(module)

    return locals()[kind]


def hooked(t: Trainer, kind: str) -> None:
    """Every GraphConv is changed."""
    model, change = _graph(t), _changed(kind)
    for module in _convs(model):
        change(module)
    train(t, model, 3)


def hooked_gat(t: Trainer, kind: str) -> None:
    """Linear layers inside of GATConv are changed."""
    model, change = net(t, lambda a, b: GATConv(a, b, 2, allow_zero_in_degree=True),
                        lambda values, _: sum(v.mean(1) for v in values)), _changed(kind)
    for module in _convs(model):
        change(module.fc)
    train(t, model)


def hooked_once(t: Trainer) -> None:
    """One relation's module alone, on one trainer alone, and what the hook has seen."""
    model = _graph(t)
    if t.rank == 0:
        model.layers[1].mods["writes"].register_forward_hook(lambda _m, _x, out: None)
    train(t, model)


def normed_in_common(t: Trainer) -> None:
    """One spectral norm for all relations, whose vectors take a step with each call."""
    one = parametrizations.spectral_norm(GraphConv(HIDDEN, HIDDEN, norm="right", bias=False))
    model = _graph(t)
    model.layers[0] = HeteroGraphConv({e: one for _, e, _ in t.facts.etypes}, "sum")
    train(t, model, 3)


def batch_normed_in_common(t: Trainer) -> None:
    """One batch norm for all relations, whose running statistics change with each call."""
    norm, model = nn.BatchNorm1d(HIDDEN), _graph(t)
    model.layers[0] = HeteroGraphConv({
        e: GraphConv(HIDDEN, HIDDEN, norm="right", activation=norm) for _, e, _ in t.facts.etypes
    }, "sum")
    train(t, model, 3)


def kept_in_common(t: Trainer) -> None:
    """One module for all relations, with a buffer that stays as it is."""
    one = GraphConv(HIDDEN, HIDDEN, norm="right", bias=False)
    one.register_buffer("scale", torch.tensor(1.5).double())
    one.register_forward_hook(lambda module, _, out: out * module.scale)
    model = _graph(t)
    model.layers[0] = HeteroGraphConv({e: one for _, e, _ in t.facts.etypes}, "sum")
    train(t, model, 3)


def hooked_everywhere(t: Trainer) -> None:
    """Hooks for every module there is."""
    def hook(module: nn.Module, _: Any, out: Any) -> Any:
        return out * 1.5 if isinstance(module, GraphConv) else None
    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        train(t, _graph(t))
    finally:
        handle.remove()


def patched_class(t: Trainer) -> None:
    """The class itself has another forward."""
    before = GraphConv.forward
    GraphConv.forward = lambda *x, **named: before(*x, **named) * 1.5
    try:
        train(t, _graph(t))
    finally:
        GraphConv.forward = before


def hooked_between_epochs(t: Trainer) -> None:
    """A hook that is there in the second epoch alone."""
    model = _graph(t)
    train(t, model, 1)
    for module in _convs(model):
        module.register_forward_hook(lambda _m, _x, out: out * 1.5)
    train(t, model, 1)


# --- DistributedDataParallel -----------------------------------------------------------------


def _steps(t: Trainer, model: nn.Module, wrapped: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.Adam(wrapped.parameters(), 0.01)
    for _, (ids, seeds, blocks) in zip(range(steps), t.loader()):
        optimizer.zero_grad()
        out = wrapped(blocks, ids, t.features(ids))
        cross_entropy(out, t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        t.gradients(wrapped)
        optimizer.step()
    t.parameters(wrapped)


def options(t: Trainer, given: dict[str, Any]) -> None:
    """Options of DistributedDataParallel."""
    model = net(t, lambda a, b: GraphConv(a, b, norm="right"), "sum")
    if given.get("process_group"):
        given = {**given, "process_group": torch.distributed.new_group(list(range(t.world)))}
    wrapped = t.parallel(model, **{k: v for k, v in given.items() if v is not None})
    assert wrapped.module is model
    assert set(wrapped.state_dict()) == {f"module.{key}" for key in model.state_dict()}
    for name, default in (("broadcast_buffers", True), ("gradient_as_bucket_view", False)):
        assert getattr(wrapped, name) == given.get(name, default)
    assert wrapped.device_ids is None
    assert wrapped.device == torch.device("cpu")
    _steps(t, model, wrapped)


def in_join(t: Trainer, given: dict[str, Any]) -> None:
    model = net(t, lambda a, b: GraphConv(a, b, norm="right"), "sum")
    wrapped = t.parallel(model)
    with wrapped.join(**given):
        _steps(t, model, wrapped)


def accumulated(t: Trainer, how: str) -> None:
    """Gradients of two batches, the first of which is not averaged."""
    wrapped = t.parallel(net(t, lambda a, b: GraphConv(a, b, norm="right"), "sum"))
    batches = iter(t.loader())

    def loss() -> Tensor:
        ids, seeds, blocks = next(batches)
        return cross_entropy(wrapped(blocks, ids, t.features(ids)), t.labels(seeds))

    if how == "no_sync":
        with wrapped.no_sync():
            loss().backward()
    elif how == "forward in no_sync":
        with wrapped.no_sync():
            first = loss()
        first.backward()
    else:
        wrapped.require_backward_grad_sync = False
        loss().backward()
        wrapped.require_backward_grad_sync = True
    loss().backward()
    t.gradients(wrapped)


def whole_options(t: Trainer, given: dict[str, Any]) -> None:
    """Options that change which gradients are averaged, or how."""
    model = net(t, lambda a, b: GraphConv(a, b, norm="right"), "sum")
    given = dict(given)
    if given.pop("part", False):
        groups = [torch.distributed.new_group([r]) for r in range(t.world)]
        given["process_group"] = groups[t.rank]
    if given.pop("ignored", False):
        name = next(iter(dict(model.named_parameters())))
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, [name])
    if given.pop("delayed", False):
        named = list(model.named_parameters())
        given |= {"delay_all_reduce_named_params": named[1:2],
                  "param_to_hook_all_reduce": named[0][1]}
    _steps(t, model, t.parallel(model, **given), 1)


def communication(t: Trainer, kind: str) -> None:
    """Hooks of DistributedDataParallel's own communication."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = net(t, lambda a, b: GraphConv(a, b, norm="right"), "sum")
    wrapped = t.parallel(model)
    if kind == "all-reduce":
        wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    elif kind == "half":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "low rank":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as low_rank

        wrapped.register_comm_hook(low_rank.PowerSGDState(None), low_rank.powerSGD_hook)
    elif kind == "fused":
        wrapped._register_fused_optim(torch.optim.SGD, lr=0.1)
    elif kind == "pickled":
        copy.copy(wrapped)
    elif kind == "joined":
        with torch.distributed.algorithms.join.Join([wrapped]):
            pass
    _steps(t, model, wrapped)
