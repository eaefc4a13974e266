"""DistributedDataParallel in a script: a module wrapper in its place.

On a meta-partitioned graph that is the selected wrapper, `raf` if none is; its `after_backward` is
called at the end of every backward pass, also for parameters that a trainer's relations do not use.
On parts that DGL made it is the wrapper that `train.wrapper` names, if that serves any graph; else
DistributedDataParallel stays as it is.

Who divides a gradient: nobody before the end of the backward pass. Each trainer accumulates its
part there, of the losses of all trainers of its group; `after_backward` sums and divides by the
number of trainers, once, as DistributedDataParallel's average would be. So there is no reducer, no
bucket, and no hook that fires before. :class:`BackwardEnd` tells when a backward pass has ended
(those of reentrant checkpoints are inside of it) and every parameter's gradient was accumulated.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from dgl.distributed.optim.pytorch.sparse_optim import DistSparseGradOptimizer
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.distdgl.autograd.lacking_gradients import ParameterNumbers
from dgl_heta.distdgl.autograd.partial_gradients import check_hooks, mark, unmark
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.loading.epochs import Epochs
from dgl_heta.distdgl.modules.registered_convs import is_hetero_conv
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.rows.uneven_steps import Optimizers
from dgl_heta.distdgl.session import Session, current
from dgl_heta.distdgl.state import selected, state_of, wrapper_for_any_graph
from dgl_heta.distdgl.training import ddp_options, ending
from dgl_heta.distdgl.training.buffers import Buffers
from dgl_heta.distdgl.training.ddp_options import on_device, on_wrapped, take_options
from dgl_heta.distdgl.versions import homes
from dgl_heta.hooks.protocols import ModuleWrapper, WrapContext
from dgl_heta.raf.backward_end import BackwardEnd
from dgl_heta.system.nested import of_type
from dgl_heta.system.patching import patch_all, plain


class Parallel:
    """Replaces the reducer of one DistributedDataParallel module.

    Parameters
    ----------
    module : the script's.
    wrapper : keeps its parameters equal on all trainers.
    world, group : all trainers, and those of this trainer's model-parallel group.
    backward : tells when a backward pass has ended.
    buffers : whether all have the buffers of trainer 0 when a pass after a training one begins, as
        with `broadcast_buffers`.
    counts : the numbers of nodes of the graph's types, where they are known.
    """

    def __init__(self, module: nn.Module, wrapper: ModuleWrapper, world: Comm, group: Comm,
                 backward: BackwardEnd, buffers: bool = True,
                 counts: Collection[int] | None = None) -> None:
        self.module, self._world = module, world
        self._together = world.size > 1 and not wrapper.uneven_steps
        self._ran = self._failed = False
        self._trained = True
        tables: list[Any] = [*{id(m.weight): m.weight for m in module.modules()
                               if isinstance(m, nn.Embedding) and m.weight.requires_grad}.values()]
        # A replica is of nodes. Other tables (classes, a decoder's relations) are no reason for
        # trainers to differ, and are averaged.
        replicas = [table for table in tables if selected().train.learnable == "replica"
                    and (counts is None or len(table) in counts)]
        epochs = state_of(Epochs)
        # Equal initial values everywhere, those of trainer 0, as DistributedDataParallel does.
        for state in [*module.parameters(), *(module.buffers() if buffers else ())]:
            _copy_from_first(world, state.data)
        self.wrapped = wrapper.wrap(module, WrapContext(
            world, group, lambda: epochs.seeds, tuple(tables), tuple(replicas), in_place=True))
        # Buffers of workers that step apart would be of different steps.
        self._buffers = Buffers(module, world, group.size > 1) if (
            buffers and not wrapper.uneven_steps) else None
        backward.watch(p for p in module.parameters() if p.requires_grad)
        backward.actions.append(self.end_backward)
        backward.failures.append(self._note_failure)
        epochs.add(module, self.wrapped.epoch_ended)
        ending.at_end(self.wrapped, world)

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], synchronize: bool = True
                ) -> Any:
        """Return the module's output; gradients are averaged if this was to `synchronize`.

        Raises
        ------
        HetaError
            Gradients are to be averaged of which some were, and the pass then failed.
        """
        trains = torch.is_grad_enabled() and synchronize
        if trains and self._failed:
            refuse("a backward pass that failed")
        self._ran = self._ran or trains
        if self._trained and self._buffers is not None:
            self._buffers.send()
        self._trained = trains
        return self.wrapped(*inputs, **kwargs)

    def _note_failure(self) -> None:
        self._failed = self._failed or (self._ran and self._together)

    def end_backward(self) -> None:
        """Let the wrapper average gradients, if the module had a part in the pass that ends."""
        if not self._ran or not self.took_part():
            return
        self._ran = False
        self.wrapped.after_backward()
        state_of(Epochs).trained()

    def took_part(self) -> bool:
        """Return whether the module, which ran, had a part in the backward pass that ends."""
        return True


class RafParallel(Parallel):
    """The same on a meta-partitioned graph, whose blocks a module must reduce.

    All trainers must average at the same backward pass, whether or not their own loss depends on
    the module: a trainer whose partition has no relation into a layer has no gradient of it.
    """

    def __init__(self, session: Session, module: nn.Module, buffers: bool = True) -> None:
        session.connect()
        self.session = session
        # Statistics of a batch norm range over all rows, so no state may stay incomplete.
        session.all_complete = session.all_complete or any(
            isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules())
        self._merges = any(map(is_hetero_conv, module.modules()))
        # Forward passes whose gradients are not averaged yet, and those whose are.
        self._chains: set[int] = set()
        self._averaged: set[int] = set()
        self._fired = self._fired_in_pass = False
        super().__init__(module, session.wrapper, session.world, session.group, session.backward,
                         buffers, session.store.schema.node_counts.values())
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._fire)
                session.order.parameters.append(parameter)
        # All trainers have the same values of these, or copies of the same tables.
        session.lacking.same.update(state_of(ParameterNumbers).renumber(module))
        session.parallels.append(self)

    def _fire(self, parameter: Tensor) -> None:
        self._fired = True
        if not self._ran and self.session.scope.is_below(parameter):
            mark(parameter)  # nobody will average it: a script that does must sum the parts

    _fire.dgl_heta = True  # type: ignore[attr-defined]

    def averages_after(self, chain: int) -> bool:
        """Return whether gradients are averaged after the backward pass through a chain."""
        return chain in self._chains

    def took_part(self) -> bool:
        """Return whether the module had a part in the backward pass that ends.

        Exchanges of its forward passes say so, because all trainers run them backward alike. Where
        the loss depends on none of them, trainers agree by a message, unless no module but this can
        have had a part.
        """
        if self._chains & self.session.order.passed:
            return True
        if not self._chains and sum(p._ran for p in self.session.parallels) < 2:
            return True
        fired = torch.tensor([int(self._fired_in_pass)])
        return bool(self.session.world.all_reduce(fired, "max", "control"))

    def end_backward(self) -> None:
        """Average, if it is this module's turn.

        Raises
        ------
        HetaError
            A second backward pass runs through a forward pass whose gradients were averaged.
        """
        self._fired_in_pass, self._fired = self._fired, False
        passed = self.session.order.passed
        if self._ran:
            unmark(self.module.parameters())
        if passed & self._averaged and self.session.world.size > 1:
            refuse("second backward pass")
        super().end_backward()
        if not self._ran:
            self._averaged = self._chains & passed or set(self._chains)
            self._chains -= self._averaged
            # Forward passes are left of which this loss did not depend: another one will.
            self._ran = bool(self._chains)

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], synchronize: bool = True
                ) -> Any:
        """Return the module's output, once it has reduced what its blocks need."""
        blocks = [b.layer.block for b in of_type(RafBlock, (inputs, kwargs)) if b.layer is not None]
        earlier = [(block.done, set(block.done)) for block in blocks]
        layers = {block.layer for block in blocks}
        # Another module may have reduced these blocks: what this one does is noted apart.
        for done, _ in earlier:
            done -= {pair for pair in done if pair[0] in layers}
        with self.session.order.call() as chains:
            output = super().forward(inputs, kwargs, synchronize)
        if chains and self.session.world.size > 1:
            check_hooks(self.module)
        if synchronize:
            self._chains |= chains
        # A module that only looks at blocks (an input layer) is no model over them; one that
        # should have reduced and did not is found when the next batch is asked for.
        merged = {pair for done, _ in earlier for pair in done if pair[0] in layers}
        if blocks and (self._merges or merged):
            self.session.merges.check(blocks, merged)
        for done, before in earlier:
            done |= before | merged
        return output


def _on_any_graph(module: nn.Module, wrapper: ModuleWrapper, buffers: bool) -> Parallel:
    """Return a wrapped module on parts that DGL made, where a trainer is a group by itself."""
    world = Comm(Traffic())
    if dist.is_initialized() and dist.get_world_size() > 1:
        everyone = range(dist.get_world_size())
        limit = timedelta(seconds=selected().run.timeout_s)
        world = Comm(Traffic(), everyone,
                     dist.new_group(list(everyone), timeout=limit, backend="gloo"))
        optimizers = state_of(Optimizers)
        if wrapper.uneven_steps and not optimizers.apart:
            optimizers.step_apart(world, plain(DistSparseGradOptimizer.step))
            state_of(Epochs).before.append(optimizers.join)
    return Parallel(module, wrapper, world, Comm(Traffic()), BackwardEnd(), buffers)


def _reference(session: Session, module: nn.Module, buffers: bool) -> Parallel:
    """Return a module with plain averages, in reference mode."""
    session.connect()
    # A backward end of its own: as DistributedDataParallel, it averages in the pass of its own
    # parameters, not in that of any module.
    return Parallel(module, session.wrapper, session.world, session.group, BackwardEnd(), buffers)


def _copy_from_first(world: Comm, state: Tensor) -> None:
    """Let a parameter or buffer have the values of trainer 0."""
    if world.size > 1 and state.numel():
        world.broadcast(state, "control")


class _Unwrapped:
    """Modules that DGL's own DistributedDataParallel serves."""

    def __init__(self) -> None:
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()


def check_no_plain_module(what: str = "DistGraph of a meta-partitioned graph",
                          was: str = "was made", do: str = "make the DistGraph") -> None:
    """Check that no module was wrapped before the graph that it is trained on was opened.

    Raises
    ------
    InputError
        One was.
    """
    if state_of(_Unwrapped).modules:
        refuse("wrapped before the graph", what=what, was=was, do=do)


def _init(original: Any) -> Any:
    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        session = current()
        wrapper = wrapper_for_any_graph() if session is None else session.wrapper
        if wrapper is None:
            original(self, module, *args, **kwargs)
            state_of(_Unwrapped).modules.add(self)
            return
        nn.Module.__init__(self)
        take_options(self, module, original, args, kwargs)
        self.module = module
        buffers = self.broadcast_buffers
        object.__setattr__(self, "heta", (
            _on_any_graph(module, wrapper, buffers) if session is None else
            _reference(session, module, buffers) if session.reference else
            RafParallel(session, module, buffers)))
    return __init__


def _forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    inputs, kwargs = on_device(self, (inputs, kwargs))
    return self.__dict__["heta"].forward(inputs, kwargs, self.require_backward_grad_sync)


PATCHES = (
    *patch_all(homes("DistributedDataParallel", "__init__"), _init,
               "the module wrapper, which averages gradients after RAF's backward pass"),
    *patch_all(homes("DistributedDataParallel", "forward"), on_wrapped(_forward),
               "check that all reductions were done"),
    *ddp_options.PATCHES,
)
