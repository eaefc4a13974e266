"""From a store, a plan and settings to one worker's engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from dgl_heta.errors import InputError, several
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import (
    InputReader,
    InputsContext,
    ModelInputs,
    ModuleWrapper,
)
from dgl_heta.models import ModelProvider, ModelSpec, find_model
from dgl_heta.models.hgnn import attends
from dgl_heta.nn import use_kernel
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.seed_blocks import SeedBlocks
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.training import optimizers
from dgl_heta.training.batches import Sampler
from dgl_heta.training.engine import Engine
from dgl_heta.training.tasks import TrainingTask, make_task
from dgl_heta.training.worker_partition import (
    WorkerPartition,
    Workers,
    batch_source,
    dtype_of,
    join,
    rows_of,
)

log = logging.getLogger("dgl_heta")
PRECOMPUTED = "averages"
"""The directory in a run's for what its model computes before training."""


def build_engine(store: Store, plan: Plan, settings: Settings, plugins: Plugins,
                 scratch: Path | None = None, trained: Mapping[str, torch.Tensor] | None = None
                 ) -> Engine:
    """The engine of the worker that the environment names; all workers must call it alike.

    Parameters
    ----------
    store, plan : the graph and the partition backend's plan; the module wrapper may replace
        the plan. With T trainers per partition, worker `rank` runs partition `rank // T`.
    settings, plugins : which providers, with which settings.
    scratch : directory for inputs that some models compute first, and for tables on disk.
    trained : learnable features that are only read, by node type.

    Raises
    ------
    InputError
        The store has no task, the plan has other targets or layers than the model, a model
        that the settings or the plan do not fit.
    """
    train = settings.train
    task, spec, provider = check(store, plan, settings, plugins, quiet=True)  # its job has said it
    wrapper: ModuleWrapper = plugins.get("module wrapper", train.wrapper)
    plan = with_trainers(wrapper.plan(plan), train.trainers)
    workers = join(store, plan, settings, plugins)
    use_kernel(plugins.kernel(train.kernel, gpu=workers.device.type == "cuda"))
    source = batch_source(plugins, train.batches, plan, workers.device)
    if wrapper.uneven_steps:
        if train.global_batch_size is not None:
            raise InputError(f"with train.wrapper = {train.wrapper} each worker takes steps of its "
                             "own, so train.global_batch_size means nothing; set train.batch_size")
        _check_apart(store, plan, settings)
    reader = _reader(store, plan, settings, workers, spec, _precomputed(provider, plugins), scratch)
    policy = settings.cache.policy_on(workers.device.type == "cuda" and reader is None)
    settings = settings.model_copy(
        update={"cache": settings.cache.model_copy(update={"policy": policy})})
    part = WorkerPartition(store, plan, settings, source, workers, rows_of(
        store, plan, settings, workers, plan.targets if plan.metapaths or task.held_out else (),
        reader, scratch, trained))
    part.cache_policy = plugins.get("cache policy", policy)
    torch.manual_seed(train.seed % 2**63)
    model = provider.build(spec).to(part.device, dtype_of(settings))
    return Engine(part, task, spec, _samplers(part, task, attends(model)), model, wrapper)


def check(store: Store, plan: Plan, settings: Settings, plugins: Plugins, quiet: bool = False
          ) -> tuple[TrainingTask, ModelSpec, ModelProvider]:
    """Everything about a run that can be wrong before a worker starts.

    Returns the task, what the model is built from, and its provider. What is only to be known is
    said in warnings, unless it is to be `quiet`.
    """
    train, model = settings.train, settings.model
    optimizers.check(train)
    task = make_task(store, settings)
    if set(plan.targets) != set(task.targets):
        raise InputError(
            f"the plan is for target {', '.join(plan.targets)}, but the task is about "
            f"{', '.join(task.targets)}; plan with "
            f"{' '.join(f'--target {t}' for t in task.targets)}"
        )
    if plan.hops != model.layers:
        raise InputError(f"the plan has {several(plan.hops, 'hop')}, but model.layers is "
                         f"{model.layers}; they must be equal")
    provider = task.provider(find_model(plugins, model.name))
    notes = [*_unread(provider, settings), *task.notes]
    precomputed = _precomputed(provider, plugins)
    if precomputed is not None and task.held_out is not None:
        raise InputError(f"model '{model.name}' computes its inputs from all edges beforehand, so "
                         "it cannot leave out those that link prediction asks for; use a model "
                         "that samples (rgcn, rgat, hgt, han)")
    if precomputed is not None:
        store.check_untimed(f"model '{model.name}', whose inputs are computed beforehand, goes")
    if precomputed is not None and plan.replication != "full":
        raise InputError(f"model '{model.name}' computes its inputs along whole metapaths, which a "
                         "plan without replication has on no partition; use "
                         "partition.replication = full")
    spec = model_spec(store, settings, task.outputs, plan, precomputed)
    with torch.random.fork_rng(devices=[]):
        built = provider.build(spec)
    norms = [name for name, m in built.named_modules()
             if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if norms and plan.num_parts * train.trainers > 1:
        notes.append(f"model '{model.name}' has {type(built.get_submodule(norms[0])).__name__} "
                     f"'{norms[0]}', whose statistics are over the rows of one worker, not of the "
                     "batch: it does not compute what one worker does; LayerNorm does")
    if plan.offloaded and precomputed is not None:
        raise InputError(f"the plan delegates relations, which model '{model.name}' does not "
                         "sample; use partition.shared = rows")
    if not train.seed_states and any(getattr(m, "reads_state", False) for m in built.modules()):
        raise InputError(f"model '{model.name}' reads the destination's state, which "
                         "train.seed_states = false leaves out; set it to true")
    for text in () if quiet else notes:
        log.warning("%s", text)
    return task, spec, provider


def _unread(provider: ModelProvider, settings: Settings) -> Iterator[str]:
    """A sentence for each setting of the model that it does not read, where it says what it reads.
    """
    reads = getattr(provider, "reads", None)
    if reads is None:
        return
    for name, value in settings.asked("model").items():
        if (name not in ("name", "layers", "hidden", *reads)
                and value != type(settings.model).model_fields[name].default):
            yield f"model.{name} = {value} has no effect: model '{provider.name}' does not read it"


def _reader(store: Store, plan: Plan, settings: Settings, workers: Workers, spec: ModelSpec,
            precomputed: ModelInputs | None, scratch: Path | None) -> InputReader | None:
    """What reads that which a model computes before training, where it does."""
    if precomputed is None:
        return None
    if scratch is None:
        raise InputError(f"model '{settings.model.name}' needs a directory for its inputs")
    return precomputed.open(InputsContext(store, plan, settings, spec, scratch / PRECOMPUTED,
                                          workers.world, workers.rank))


def _samplers(part: WorkerPartition, task: TrainingTask, reads_remote: bool
              ) -> tuple[Sampler, Sampler]:
    """The samplers of training and of evaluation."""
    if part.precomputed is not None:
        blocks = SeedBlocks(part.precomputed.parts)
        part.source.layers(blocks, part.device)  # which may refuse it
        return blocks, blocks
    train = part.settings.train
    training = part.sampler(train.fanouts, task.held_out, reads_remote)
    return training, (training if train.eval_fanouts is None else
                      training.with_fanouts(train.eval_fanouts))


def _check_apart(store: Store, plan: Plan, settings: Settings) -> None:
    """Workers that take different numbers of steps must not need each other in a step."""
    if any(len(ranks) > 1 for ranks in plan.groups):
        raise InputError(f"with train.wrapper = {settings.train.wrapper} workers take different "
                         "numbers of steps, but its plan has workers that need each other in each "
                         "step; let its plan() return dgl_heta.raf.wrapper.data_parallel(plan)")
    learnable = [t for t in store.schema.node_types
                 if len(plan.users(t)) > 1 and not store.has_array(t, "feat")]
    if learnable and settings.train.learnable == "exact":
        raise InputError(f"with train.wrapper = {settings.train.wrapper} workers take different "
                         f"numbers of steps, but all train the features of '{learnable[0]}' "
                         "together; set train.learnable = replica")


def with_trainers(plan: Plan, trainers: int) -> Plan:
    """The plan for several workers per partition: rank p T + t is trainer t of partition p.

    Trainers of equal t make a model-parallel group, so trainers of one partition share its
    files and nothing else.
    """
    if trainers == 1:
        return plan
    return replace(plan, partitions=tuple(
        replace(p, index=p.index * trainers + t, group=p.group * trainers + t)
        for p in plan.partitions for t in range(trainers)))


def without_trainers(plan: Plan, trainers: int) -> Plan:
    """The plan of which :func:`with_trainers` made this one: it follows from its assignment."""
    return replace(plan, partitions=tuple(
        replace(p, index=p.index // trainers, group=p.group // trainers)
        for p in plan.partitions[::trainers]))


def model_spec(store: Store, settings: Settings, outputs: Mapping[str, int], plan: Plan,
               precomputed: ModelInputs | None = None) -> ModelSpec:
    """The specification of the model: the store's types, the task's outputs, the settings."""
    model = settings.model
    widths = {t: store.width(t, "feat") for t in store.schema.node_types
              if store.has_array(t, "feat")}
    dims = {t: widths.get(t, model.hidden) for t in store.schema.node_types}
    spec = ModelSpec(store.schema, dims, frozenset(widths), dict(outputs),
                     **model.model_dump(exclude={"name"}))
    return spec if precomputed is None else precomputed.complete(spec, store, plan)


def _precomputed(provider: ModelProvider, plugins: Plugins) -> ModelInputs | None:
    """The inputs that a model reads in place of sampled blocks, if it names some."""
    name = getattr(provider, "precomputed", None)
    return plugins.get("model inputs", name) if name else None
