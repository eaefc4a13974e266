"""A model in a training loop of one's own: merged over its group, its gradients averaged."""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.hooks.protocols import ModuleWrapper, WrapContext
from dgl_heta.nn.precision import mixed_precision, widened
from dgl_heta.raf.backward_end import BackwardEnd
from dgl_heta.raf.wrapper import Raf, RafModule
from dgl_heta.training.batches import Batch
from dgl_heta.training.checkpoint import latest_position, load_checkpoint, save_checkpoint
from dgl_heta.training.checkpoint_files import positions
from dgl_heta.training.preemption import Position, generators, set_generators
from dgl_heta.training.resumed_identity import Identity
from dgl_heta.training.step_proof import StepProof
from dgl_heta.training.worker_partition import WorkerPartition, dtype_of

log = logging.getLogger("dgl_heta")


class DistributedModel(nn.Module):
    """A model on one worker, in step with the others; :func:`distribute` makes one.

    When a backward pass ends, the gradients of all workers are averaged, and added to those of
    earlier passes that are still there.

    Attributes
    ----------
    module : the model as it was given. Its parameters are the same on all workers, so its
        `state_dict()` is the whole model's.
    part : the partition that it trains on.
    wrapped : what keeps its parameters equal on all workers.
    proof : compares some of its steps with the plain way (`run.prove`); None where a worker has all
        that it needs.

    Parameters
    ----------
    wrapper : makes `wrapped`.
    owned : the number of seeds that this worker has in an epoch.
    merged : the model as it runs over the group; default: a :class:`RafModule` of it.
    timed : the context in which a stage of a step ("fetch", "forward") runs.
    """

    proof: StepProof | None = None
    proved_by = StepProof
    _hooks: ClassVar[WeakKeyDictionary[nn.Module, dict[int, RemovableHandle]]] = WeakKeyDictionary()
    """Of modules: by the id of a parameter, what tells of its gradients. Only the last model that a
    module was given to hears of them."""

    def __init__(self, module: nn.Module, part: WorkerPartition,
                 wrapper: ModuleWrapper | None = None, owned: Callable[[], int] = lambda: 0,
                 merged: nn.Module | None = None,
                 timed: Callable[[str], AbstractContextManager[None]] = lambda stage: nullcontext()
                 ) -> None:
        super().__init__()
        wanted, dtypes = dtype_of(part.settings), {p.dtype for p in module.parameters()}
        if dtypes & {torch.float32, torch.float64} and wanted not in dtypes:
            call = "double" if wanted == torch.float64 else "float"
            given = " and ".join(sorted(map(str, dtypes)))
            raise InputError(f"the model's parameters are {given}, and rows are read as {wanted} "
                             f"(train.dtype); give distribute model.{call}(), or set train.dtype "
                             "otherwise")
        self.module = module.to(part.device)
        for state in (*module.parameters(), *module.buffers()):
            if part.world.size > 1 and state.numel():
                part.world.broadcast(state.data, "control")
        self.part, self._mixed = part, part.settings.train.autocast == "bfloat16"
        self._timed, wrapper = timed, wrapper or Raf()
        self.wrapped = wrapper.wrap(RafModule(module, part.group) if merged is None else merged,
                                    WrapContext(part.world, part.group, owned))
        if any(len(ranks) > 1 for ranks in part.plan.groups):
            self.proof = self.proved_by(part, wrapper)
        self._backward = BackwardEnd()
        self._runs: set[Path] = set()
        self._steps = 0
        self._before: list[tuple[nn.Parameter, Tensor | None]] | None = None
        self._given: list[nn.Parameter] = []
        self._of_all = [*module.parameters()]
        self._backward.actions.append(self._averaged)
        for hook in self._hooks.pop(module, {}).values():
            hook.remove()
        self._hear_parameters()

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The model's outputs for this worker's own seeds, per target type.

        All workers must call it alike. The module is called with the batch's blocks and the rows of
        its input nodes.
        """
        if not isinstance(batch, Batch):
            raise InputError(f"a distributed model takes a batch of part.loader(…), not "
                             f"{type(batch).__name__}")
        if batch.part is not self.part:
            raise InputError("the batch is of another partition than the model; distribute the "
                             "model on the partition whose loader gives its batches")
        train = self.begin()
        with self._timed("fetch"):
            rows = batch.inputs(train)
        with self._timed("forward"), self.precision():
            outputs = {t: widened(x) for t, x in self.wrapped(batch.mini_batch(), rows).items()}
        if train:
            if self.proof is not None:
                if self._steps == 1:
                    self.warn_of_buffers()
                self.proof.prove(self.module, batch, rows, outputs.values())
            self._steps += 1
            self.await_backward(outputs.values(), batch.reads)
        return outputs

    def begin(self) -> bool:
        """Begin a forward pass; returns whether a backward pass may follow.

        Raises
        ------
        HetaError
            The backward pass before it did not come to its end.
        InputError
            The module has parameters that workers do not have in common.
        """
        if self.part.world.size > 1:
            known = {*map(id, self._of_all)}
            if later := [n for n, p in self.module.named_parameters() if id(p) not in known]:
                raise InputError(f"parameters came into the module after it was distributed: "
                                 f"{listing(later)}; change the module first, and give it to "
                                 "dgl_heta.distribute then")
        if self._before is not None:
            raise HetaError("the backward pass before this batch failed, so workers do not know "
                            "whose gradients are whole; go on from a checkpoint")
        return torch.is_grad_enabled()

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the model computes (`train.autocast`)."""
        return mixed_precision(self.part.device, self._mixed)

    def await_backward(self, outputs: Iterable[Tensor], reads: int) -> None:
        """Average gradients at the end of the backward pass that comes to these outputs of a batch,
        the last of so many that read learnable rows."""
        for out in outputs:
            if out.requires_grad:
                out.register_hook(lambda grad: self._heard(reads))
        self._hear_parameters()  # some may have been frozen before

    def warn_of_buffers(self) -> None:
        """Warn of the module's buffers that are not the same on all workers; all call it."""
        world = self.part.world
        if world.size == 1:
            return
        parameters = {name for name, _ in self.module.named_parameters()}
        # As bytes: NumPy has no bfloat16.
        own = {name: zlib.crc32(
                   value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
               for name, value in self.module.state_dict().items()
               if name not in parameters and isinstance(value, Tensor) and value.numel()}
        every = world.all_gather_json(own, "control")
        unlike = [name for name in own if any(other.get(name) != own[name] for other in every)]
        if unlike and world.rank == 0:
            log.warning("workers have other values in the module's buffers: %s; each computes with "
                        "its own, and the model that is saved has those of worker 0. Set them to "
                        "the same on all workers, or make them parameters", listing(unlike))

    def _hear_parameters(self) -> None:
        """Hear of each backward pass that comes to parameters: a loss may depend on them without
        the outputs, before them, and in a pass of its own."""
        if self.part.world.size > 1:
            hooks = self._hooks.setdefault(self.module, {})
            for parameter in self.module.parameters():
                if parameter.requires_grad and id(parameter) not in hooks:
                    hooks[id(parameter)] = parameter.register_hook(partial(self._came, parameter))

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedModel:
        """A copy with parameters of its own, on the same partition and its learnable rows, for
        averages of models (`torch.optim.swa_utils`). All workers make it alike."""
        return type(self)(copy.deepcopy(self.module, memo), self.part)

    def save(self, directory: str | Path, optimizer: torch.optim.Optimizer, epoch: int) -> None:
        """Write a checkpoint after an epoch, and drop the ones before it.

        Every worker writes its own shard, with its learnable rows and their moments, and the
        numbers that the optimizers are set to (learning rates). All call it.

        Parameters
        ----------
        directory : one that holds no checkpoints of others.
        epoch : how many epochs have ended, from 1.

        Raises
        ------
        InputError
            The directory holds checkpoints that this model has neither written nor gone on from.
        """
        run_dir, device = Path(directory), self.part.device
        if epoch < 1:
            raise InputError(f"epoch is {epoch}; give how many epochs have ended, from 1")
        others = run_dir.resolve() not in self._runs and bool(positions(run_dir))
        if any(self.part.world.all_gather_json(others, "control")):
            raise InputError(f"{directory} holds checkpoints of another model; go on from them by "
                             "model.resume, or give another directory")
        self._runs.add(run_dir.resolve())
        run_dir.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self, optimizer, run_dir, Position(epoch), {}, self._identity(),
                        {**generators(device), **{
                            name: torch.tensor(value, dtype=torch.float64)
                            for name, (_, _, value) in self._numbers(optimizer).items()}})

    def resume(self, directory: str | Path, optimizer: torch.optim.Optimizer) -> int:
        """Go on from the last checkpoint of a directory; returns the epochs that it has, or 0 where
        there is none. All workers call it; they may be more or fewer than those that saved it.

        Raises
        ------
        InputError
            The checkpoint is of another graph, other targets or another model, or damaged.
        """
        identity = self._identity()
        at = latest_position(self, Path(directory), identity)
        if any(at):
            _, states = load_checkpoint(self, optimizer, Path(directory), at, identity)
            set_generators(states, self.part.device)
            for name, (where, key, value) in self._numbers(optimizer).items():
                if name in states:
                    number = states[name].item()
                    where[key] = bool(number) if isinstance(value, bool) else number
            learnable = self.part.learnable
            self._before, self._given = None, []  # of a backward pass that failed
            self._backward.forget()
            learnable.forget()
            if "rows.lr" in states:
                learnable.adam = replace(learnable.adam, lr=states["rows.lr"].item())
        self._runs.add(Path(directory).resolve())
        return at.epoch

    def _numbers(self, optimizer: torch.optim.Optimizer
                 ) -> dict[str, tuple[dict[str, Any], str, float]]:
        """What optimizers are set to: a name, where it stands, its value."""
        rates = {"lr": self.part.learnable.adam.lr}
        return {"rows.lr": (rates, "lr", rates["lr"]), **{
            f"group.{i}.{key}": (group, key, value)
            for i, group in enumerate(optimizer.param_groups)
            for key, value in group.items() if isinstance(value, int | float)}}

    def _identity(self) -> Identity:
        # How many seeds a step has is the loop's own, so it may differ.
        train = self.part.settings.train
        return Identity.from_sections(self.part.store, self.part.plan, {"train": {
            "dtype": train.dtype, "learnable": train.learnable, "wrapper": train.wrapper,
            "global_batch_size": 1}}, {})

    def _heard(self, reads: int) -> None:
        """A backward pass begins at an output of a forward pass.

        Raises
        ------
        HetaError
            It is not the last one, so the rows that it read are others' now.
        """
        learnable = self.part.learnable
        if learnable.counts and reads != learnable.reads:
            raise HetaError("a backward pass through another batch than the last one: learnable "
                            "rows have the gradients of one batch at a time; call loss.backward() "
                            "before the next batch, and compute what needs none in "
                            "torch.no_grad()")
        if learnable.counts and reads == learnable.updated:
            raise HetaError("the row optimizer's step() came before the backward pass whose "
                            "gradients it is to take; call it after loss.backward()")
        self._begun()

    def _came(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """A parameter has a gradient."""
        self._begun()
        self._given.append(parameter)

    def _begun(self) -> None:
        """A backward pass is under way that comes to outputs or parameters."""
        if self._before is None:
            # None, not zeros: whether a worker has a gradient tells who alone has a parameter
            # (`comm/gradient_average.py`). What earlier passes have left is averaged already; it is
            # added again afterwards.
            self._before = [(p, p.grad) for p in self.module.parameters()]
            for parameter, _ in self._before:
                parameter.grad = None
            self._backward.under_way()

    def _averaged(self) -> None:
        """At the end of a backward pass, after the adjoints of its exchanges and before any
        optimizer's step: every worker comes here, also one whose seeds gave no gradient.

        Raises
        ------
        HetaError
            Gradients were given to whoever asked for them, and are not in the parameters.
        """
        (before, self._before), (given, self._given) = (self._before, None), (self._given, [])
        taken = any(parameter.grad is None for parameter in given)
        if not taken:
            self.wrapped.after_backward()
        for parameter, grad in before or ():
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad
        if taken:
            raise HetaError("torch.autograd.grad returns gradients of one worker, which nobody "
                            "averages; call loss.backward(), and read them from parameter.grad")


def distribute(model: nn.Module, part: WorkerPartition) -> DistributedModel:
    """A model that trains on a partition, in step with the other workers.

    Parameters
    ----------
    model : called as `model(batch, inputs)` with a :class:`~dgl_heta.sampling.blocks.MiniBatch` and
        the rows of its input nodes per type; returns the rows of the own seeds per target type. It
        merges relations by :class:`~dgl_heta.nn.CrossRelation`, as a
        :class:`~dgl_heta.BlockModel` of an :class:`~dgl_heta.HGNNLayer` does. All workers have the
        parameters of worker 0 afterwards.
    part : from :func:`dgl_heta.open_partition`.

    Raises
    ------
    InputError
        Several workers need each other in a step, and the model does not merge relations; its
        parameters are of another dtype than rows are read in.
    """
    norms = [name for name, m in model.named_modules()
             if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms and isinstance(part, WorkerPartition) and part.world.size > 1:
        raise InputError(f"'{norms[0]}' is {type(model.get_submodule(norms[0])).__name__}, whose "
                         "statistics would be of the rows of one worker, not of the batch; use "
                         "LayerNorm")
    if not isinstance(part, WorkerPartition):
        raise InputError(f"a partition is needed, not {type(part).__name__}; open one by "
                         "dgl_heta.open_partition(directory)")
    return DistributedModel(model, part)
