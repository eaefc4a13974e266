"""Recording the first steps of a script (`run.record`), for `dgl-heta prove` to compare.

Seen are, through the first optimizer step and the first evaluated batch: what outermost modules are
given and return, what modules within them that are given a block return, the loss, gradients after
the backward pass, parameters and rows of embeddings after the step. Rows go by node id.

A script's data loaders give one batch per pass meanwhile, and the process ends, as by sys.exit(0),
when all has been seen. What is patched here is patched for the life of the process.
"""

from __future__ import annotations

import atexit
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dgl.distributed import DistEmbedding
from dgl.distributed.optim.pytorch.sparse_optim import DistSparseGradOptimizer
from dgl.heterograph import DGLBlock
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.blocks.edge_rows import EdgeRows
from dgl_heta.distdgl.modules.module_hooks import around
from dgl_heta.distdgl.modules.registered_convs import is_hetero_conv
from dgl_heta.distdgl.proof.comparable import (
    fill_embeddings,
    fill_parameters,
    in_double,
    is_norm,
    ranks_of_the_launch,
    seed_all,
    without_randomness,
)
from dgl_heta.distdgl.proof.row_nodes import (
    RowNodes,
    destinations,
    dtype_name,
    layer_of,
    node_data,
    nodes_of,
    sources,
    values_of,
    words_on,
)
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import state_of
from dgl_heta.proof.comparison import TOLERANCES
from dgl_heta.proof.outside import drawn_since, torch_generators, torch_states
from dgl_heta.proof.recorded_run import ROWS, Key, Record, fewest
from dgl_heta.system.nested import items_of, of_type

BATCHES = 8
"""Batches of a pass in which neither an optimizer steps nor anything is evaluated."""
PASSES, PASSES_WITHOUT_STEP = 4, 8
"""Passes over data loaders in which nothing is evaluated: after the first step, and before it."""


class _Recording:
    """The recorder of this process, if it records."""

    recorder: Recorder | None = None


def recorder() -> Recorder | None:
    """Return the recorder of this process, if it records."""
    return state_of(_Recording).recorder


def start_recording(directory: Path, reference: bool, double: bool = False) -> None:
    """Record what this process computes, if it is a trainer; the first call counts.

    With `double` the script computes in double precision.
    """
    recording = state_of(_Recording)
    if recording.recorder is not None:
        return
    seed_all(int(os.environ.get("RANK", os.environ.get("DGL_SERVER_ID", "0"))))
    if os.environ.get("DGL_ROLE") == "server":
        return
    without_randomness()
    ranks_of_the_launch()
    if double:
        in_double()
    recording.recorder = Recorder(directory, reference)
    recording.recorder.listen()
    atexit.register(recording.recorder.save)


class Recorder:
    """Records the steps of a trainer."""

    def __init__(self, directory: Path, reference: bool) -> None:
        self.directory = directory
        self.record = Record(reference, int(os.environ.get("RANK", "0")))
        self._world: Any = None
        self._roots: dict[str, nn.Module] = {}
        self._names: dict[int, str] = {}  # of modules, by id
        self._alive: list[Any] = []  # objects whose id is used: another one could get it
        self._within: list[nn.Module] = []  # calls that are under way, the outermost first
        self._step: str | None = None  # what the outermost call is of; None: not recorded
        self._rows: list[RowNodes] = []  # of what the outermost call returns
        self._random = 0  # calls that used random numbers, the innermost of each nest alone
        self._calls: Counter[Key] = Counter()
        self._batches = self._passes = self._backward = 0
        self._evaluated: int | None = None  # the batch after the first step
        self._first_evaluated: int | None = None  # that before it
        self._batch_nodes: list[RowNodes] = []
        self._settled = False
        self._looked_up: dict[int, list[Tensor]] = {}
        self._optimizers: set[int] = set()

    def listen(self) -> None:
        """Hear of modules, backward passes, optimizers and embeddings from now on."""
        # `_call_impl`, not hooks: what a module is given is wanted before its own hooks change it,
        # and what it returns after them.
        nn.Module._call_impl = around(nn.Module._call_impl, self._call)  # type: ignore[method-assign]
        torch.autograd.backward = around(torch.autograd.backward, self._backward_pass)
        register_optimizer_step_post_hook(self._stepped)
        DistSparseGradOptimizer.step = around(DistSparseGradOptimizer.step, self._sparse_step)
        DistEmbedding.__call__ = around(DistEmbedding.__call__, self._look_up)

    # --- what the loader tells -------------------------------------------------------------

    def start_pass(self, session: Session) -> None:
        """Begin a pass over a data loader, on all trainers; end the process if all was seen."""
        if self._world is None:
            self._world = session.world
            self.record.group = list(session.group.ranks) if session.world.size > 1 else [0]
            self.record.learnable = session.settings.train.learnable
            fill_embeddings(session)
        # Trainers must end in the same pass, or the rest would wait for one that is gone.
        self._passes += 1
        limit = PASSES if self.record.steps else PASSES_WITHOUT_STEP
        over = self.record.evaluations > 0 or self._passes > limit
        if self._world.all_reduce(torch.tensor([int(over)]), "max", "control").item():
            raise SystemExit(0)
        self._settled = False

    def ends_pass(self, batches: int) -> bool:
        """Return whether a pass that has given so many batches is to end."""
        return batches >= 1 and (self._settled or batches >= BATCHES)

    def begin_batch(self, inputs: Mapping[str, Tensor], seeds: Mapping[str, Tensor]) -> None:
        """Note a batch that is handed out."""
        self._batches += 1
        self._batch_nodes = [RowNodes(t, bare(ids).numpy()) for part in (seeds, inputs)
                             for t, ids in part.items() if len(ids)]
        if self._batches <= 2:
            for t, ids in seeds.items():
                self.record.add(Key("seeds", f"batch {self._batches}", t), bare(ids).numpy())

    # --- modules ---------------------------------------------------------------------------

    def _call(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
              ) -> Any:
        # A wrapped module is known by the name of the one in it, in both runs.
        if isinstance(module, DistributedDataParallel) or not self._batches:
            return original(module, *args, **kwargs)
        outermost = not self._within
        blocks = [b for b in of_type(DGLBlock, (args, kwargs)) if layer_of(b)]
        if outermost:
            self._enter(module, blocks, args, kwargs)
        if self._step is None:
            return self._inside(original, module, args, kwargs)
        before, states = self._random, torch_states()
        output = self._inside(original, module, args, kwargs)
        if drawn_since(states):
            if before == self._random:
                self._random += 1
                _note(self.record.random, self._named(module))
            if outermost:  # or the two runs, with other rows, would go on from other states
                for generator, state in zip(torch_generators(), states):
                    generator.set_state(state)
        if is_norm(module) and self._step == "training":
            _note(self.record.norms, self._named(module))
        if outermost:
            self._outputs(module, blocks, output)
        # Within a HeteroGraphConv a module sees one relation, whose result here is a part of that
        # of all trainers.
        elif blocks and not any(map(is_hetero_conv, self._within)):
            self._layer(module, blocks[-1], output)
        return output

    def _inside(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
                ) -> Any:
        self._within.append(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            self._within.pop()

    def _enter(self, module: nn.Module, blocks: list[Any], args: Any, kwargs: Any) -> None:
        """Record what an outermost module is given."""
        self._step = self._step_of(module, bool(blocks))
        self._root(module)
        if self._step is None:
            return
        for dtype in (torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None,
                      torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None):
            if dtype is not None:
                self._coarsen(str(dtype).removeprefix("torch."))
        self._add("draws", self._named(module), (), torch.tensor(
            [zlib.crc32(torch.cat(torch_states()).numpy().tobytes())]), None)
        self._rows = [*destinations(blocks[-1]), *sources(blocks[0])] if blocks else (
            self._batch_nodes)
        if not blocks:
            return
        candidates = sources(blocks[0])
        for path, tensor in (*items_of(Tensor, (*args, kwargs)), *node_data(blocks[0])):
            nodes = None if isinstance(tensor, EdgeRows) else nodes_of(
                path, len(tensor) if tensor.dim() else -1, candidates)
            if nodes is not None:
                self._add("input", self._named(module), path, tensor, nodes)

    def _step_of(self, module: nn.Module, blocks: bool) -> str | None:
        """Return of which step an outermost call is, if it is to be recorded."""
        if torch.is_grad_enabled() and (module.training or not blocks):
            return None if self.record.steps else "training"
        if blocks:
            self._settled = True
            if self.record.steps and self._evaluated is None:
                self._evaluated = self._batches
                self.record.evaluations += 1
            elif not self.record.steps and self._first_evaluated is None:
                self._first_evaluated = self._batches
        if self._batches == self._evaluated:
            return "evaluation"
        return "evaluation before training" if self._batches == self._first_evaluated else None

    def _outputs(self, module: nn.Module, blocks: list[Any], output: Any) -> None:
        """Record what an outermost module returns."""
        for path, tensor in items_of(Tensor, output):
            if tensor.is_floating_point():
                self._coarsen(dtype_name(tensor))
            if tensor.numel() == 1:
                self._add("output", self._named(module), path, tensor, None)
            elif tensor.dim():
                nodes = nodes_of(path, len(tensor), self._rows)
                if nodes is not None:
                    self._add("output", self._named(module), path, tensor, nodes)

    def _layer(self, module: nn.Module, block: Any, output: Any) -> None:
        """Record what a module within the outermost one returns that was given a block."""
        candidates = destinations(block)
        for path, tensor in items_of(Tensor, output):
            nodes = nodes_of(path, len(tensor) if tensor.dim() else -1, candidates)
            if nodes is not None:
                self._add("layer", self._named(module), path, tensor, nodes, layer_of(block))

    def _add(self, kind: str, name: str, path: tuple[Any, ...], tensor: Tensor,
             nodes: RowNodes | None, layer: int = 0) -> None:
        """Record a tensor, at a path in what a module is given or returns; its rows by node id."""
        assert self._step is not None
        key = Key(kind, name, words_on(kind, path, nodes, layer), self._step)
        self._calls[key] += 1
        if (number := self._calls[key]) > 1:
            key = key._replace(detail=f"{key.detail}, call {number}")
        values, ids = values_of(tensor), None
        if nodes is not None:
            values, ids = nodes.rows_of(values)
        self.record.add(key, values, ids, dtype_name(tensor))

    def _coarsen(self, dtype: str) -> None:
        if TOLERANCES.get(dtype, 0) > TOLERANCES[self.record.precision]:
            self.record.precision = dtype

    # --- names -----------------------------------------------------------------------------

    def _root(self, module: nn.Module) -> None:
        """Name an outermost module and its children, when it is called first."""
        if id(module) in self._names:
            return
        kind = type(module).__name__
        count = sum(type(m).__name__ == kind for m in self._roots.values())
        name = f"{kind} {count + 1}" if count else kind
        self._roots[name] = module
        self._alive.append(module)
        for path, child in module.named_modules():
            self._names.setdefault(id(child), f"{name}.{path}" if path else name)
        self.record.tables += [f"{self._named(m)}.weight" for m in module.modules()
                               if isinstance(m, nn.Embedding)]
        named = [(f"{name}.{p}", parameter) for p, parameter in module.named_parameters()]
        for path, parameter in named:
            if not is_lazy(parameter):
                self.record.add(Key("start", path), values_of(parameter), None,
                                dtype_name(parameter))
        if not self.record.steps:
            fill_parameters(named)

    def _named(self, module: nn.Module) -> str:
        return self._names.get(id(module), type(module).__name__)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        seen = set()
        for name, root in self._roots.items():
            for path, parameter in root.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{name}.{path}", parameter

    # --- the step --------------------------------------------------------------------------

    def _backward_pass(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any
                       ) -> Any:
        if self.record.steps or not self._batches:
            return original(tensors, *args, **kwargs)
        self._backward += 1
        detail = f"backward pass {self._backward}" if self._backward > 1 else ""
        losses = [tensors] if isinstance(tensors, Tensor) else [*tensors]
        for position, loss in enumerate(losses):
            if loss.numel() == 1:
                self.record.add(Key("loss", f"{position + 1}" if position else "", detail),
                                values_of(loss).reshape(-1), None, dtype_name(loss))
        # Averaged within the pass, so what is recorded after it is what the optimizer steps by.
        result = original(tensors, *args, **kwargs)
        self._gradients(self._parameters(), detail)
        return result

    def _gradients(self, named: Iterable[tuple[str, nn.Parameter]], detail: str) -> None:
        for name, parameter in named:
            if parameter.requires_grad:
                grad = parameter.grad
                self.record.add(Key("gradient", name, detail),
                                None if grad is None else values_of(grad), None,
                                dtype_name(parameter))

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """Record parameters after the first step of a dense optimizer."""
        self._settled = True
        if not self._batches or id(optimizer) in self._optimizers:
            return
        self._known(optimizer)
        names = {id(p): name for name, p in self._parameters()}
        number = len(self._optimizers)
        detail = f"optimizer {number}" if number > 1 else ""
        for position, parameter in enumerate(
                p for group in optimizer.param_groups for p in group["params"]):
            name = names.get(id(parameter))
            if name is None:  # of a module that nobody called
                name = f"{position} of optimizer {number}"
                self._gradients([(name, parameter)], detail)
            self.record.add(Key("parameter", name, detail), values_of(parameter), None,
                            dtype_name(parameter))

    def _known(self, optimizer: Any) -> None:
        self._optimizers.add(id(optimizer))
        self._alive.append(optimizer)
        self.record.steps += 1

    def _look_up(self, original: Callable[..., Any], embedding: Any, ids: Any, *args: Any,
                 **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not self.record.steps:
            self._alive.append(embedding)
            self._looked_up.setdefault(id(embedding), []).append(torch.as_tensor(ids).cpu())
        return original(embedding, ids, *args, **kwargs)

    def _sparse_step(self, original: Callable[..., Any], optimizer: Any) -> None:
        """Let a sparse optimizer step, on all trainers alike, and record rows after it."""
        original(optimizer)
        self._settled = True
        if self._world is None or id(optimizer) in self._optimizers:
            return
        self._known(optimizer)
        # Rows are pulled from their owners, who must have updated them, and must wait with the next
        # step until all have read.
        self._world.barrier()
        for embedding in optimizer._params:
            looked_up = self._looked_up.get(id(embedding))
            if not looked_up:
                continue
            ids = np.unique(torch.cat(looked_up).numpy())
            ids = ids[fewest(ids, ROWS)] if len(ids) > ROWS else ids
            state = optimizer._state[embedding.name]
            states = state if isinstance(state, tuple) else (state,)
            rows = torch.from_numpy(ids)
            for number, tensor in enumerate(states, 1):
                self.record.add(Key("state", embedding.name, f"{number} of {len(states)}"),
                                values_of(tensor[rows]), ids)
            self.record.add(Key("row", embedding.name), values_of(embedding.weight[rows]), ids)
        self._world.barrier()

    def save(self) -> None:
        """Write the record; once, when the process ends."""
        if self._batches:
            self.record.save(self.directory)


def _note(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)
