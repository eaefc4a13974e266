"""From a store, a plan and settings to one worker's engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from dgl_heta.comm.collectives import CPU, Traffic, everyone, init_workers, make_comms
from dgl_heta.comm.exchange_dtype import wire_dtype
from dgl_heta.comm.machines import join_machine, machine_name
from dgl_heta.comm.sampled_rows import agreement, delivery
from dgl_heta.errors import InputError, several
from dgl_heta.features import LearnableFeatures, StaticFeatures
from dgl_heta.features.disk_tables import DiskTables, memory_tables
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import InputReader, InputsContext, ModelInputs, ModuleWrapper
from dgl_heta.models import ModelProvider, ModelSpec, find_model
from dgl_heta.models.hgnn import attends
from dgl_heta.nn import use_kernel
from dgl_heta.planning.plan import Plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seed_blocks import SeedBlocks
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.memory import fit_in_memory
from dgl_heta.training import optimizers
from dgl_heta.training.device import SHARED, choose_device
from dgl_heta.training.engine import Engine, Inputs, Sampler, Workers
from dgl_heta.training.step_proof import StepProof
from dgl_heta.training.tasks import TrainingTask, make_task

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
    task, spec, provider = check(store, plan, settings, plugins)
    wrapper: ModuleWrapper = plugins.get("module wrapper", train.wrapper)
    use_kernel(plugins.get("aggregation kernel", train.kernel))
    source = plugins.get("batch source", train.batches)
    plan = with_trainers(wrapper.plan(plan), train.trainers)
    workers = join(plan, settings)
    if wrapper.uneven_steps:
        if train.global_batch_size is not None:
            raise InputError(f"with train.wrapper = {train.wrapper} each worker takes steps of its "
                             "own, so train.global_batch_size means nothing; set train.batch_size")
        _check_apart(store, plan, settings)
    inputs = _inputs(store, plan, settings, workers, spec, task,
                     _precomputed(provider, plugins), scratch, trained)
    torch.manual_seed(train.seed % 2**63)
    model = provider.build(spec).to(workers.device, _dtype(settings))
    samplers = _samplers(store, plan, settings, workers, task, inputs.precomputed, attends(model))
    engine = Engine(store, plan, settings, task, spec, workers, samplers, source, inputs, model,
                    wrapper)
    if any(len(ranks) > 1 for ranks in plan.groups):
        engine.proof = StepProof(engine, wrapper, workers.traffic[0])
    return engine


def check(store: Store, plan: Plan, settings: Settings, plugins: Plugins
          ) -> tuple[TrainingTask, ModelSpec, ModelProvider]:
    """Everything about a run that can be wrong before a worker starts.

    Returns the task, what the model is built from, and its provider.
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
    precomputed = _precomputed(provider, plugins)
    if precomputed is not None and task.held_out is not None:
        raise InputError(f"model '{model.name}' computes its inputs from all edges beforehand, so "
                         "it cannot leave out those that link prediction asks for; use a model "
                         "that samples (rgcn, rgat, hgt, han)")
    if precomputed is not None and plan.replication != "full":
        raise InputError(f"model '{model.name}' computes its inputs along whole metapaths, which a "
                         "plan without replication has on no partition; use "
                         "partition.replication = full")
    for text in task.notes:
        log.warning("%s", text)
    spec = model_spec(store, settings, task.outputs, plan, precomputed)
    with torch.random.fork_rng(devices=[]):
        built = provider.build(spec)
    norms = [name for name, m in built.named_modules()
             if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if norms and plan.num_parts * train.trainers > 1:
        log.warning("model '%s' has %s '%s', whose statistics are over the rows of one worker, not "
                    "of the batch: it does not compute what one worker does; LayerNorm does",
                    model.name, type(built.get_submodule(norms[0])).__name__, norms[0])
    if plan.offloaded and precomputed is not None:
        raise InputError(f"the plan delegates relations, which model '{model.name}' does not "
                         "sample; use partition.shared = rows")
    if not train.seed_states and any(getattr(m, "reads_state", False) for m in built.modules()):
        raise InputError(f"model '{model.name}' reads the destination's state, which "
                         "train.seed_states = false leaves out; set it to true")
    return task, spec, provider


def join(plan: Plan, settings: Settings) -> Workers:
    """Meet the other workers, and form the plan's groups."""
    train = settings.train
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size != plan.num_parts:
        raise InputError(f"{size} workers were started for {plan.num_parts} "
                         "partitions and trainers; start one worker for each trainer of each "
                         "partition")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(train.threads or max(_cores() // local, 1))
    init_workers("gloo", settings.run.timeout_s)
    training, sampling = Traffic(), Traffic()
    device = choose_device(train.device, everyone(training))
    world, group = make_comms(plan, training, settings.run.timeout_s,
                              wire=wire_dtype(settings.train.exchange_dtype),
                              device=CPU if train.device == SHARED else device)
    if world.size > 1 and train.learnable == "exact":
        join_machine(world, world.all_gather_json(machine_name(), "control"),
                     settings.run.timeout_s)
    apart = (make_comms(plan, sampling, settings.run.timeout_s, apart=True)[1]
             if plan.exchanges_while_sampling else group)
    return Workers(int(os.environ.get("RANK", "0")), local, device, world, group, apart,
                   (training, sampling))


def _inputs(store: Store, plan: Plan, settings: Settings, workers: Workers, spec: ModelSpec,
            task: TrainingTask, precomputed: ModelInputs | None, scratch: Path | None,
            trained: Mapping[str, torch.Tensor] | None) -> Inputs:
    """Where this worker's input features come from."""
    train, model, dtype = settings.train, settings.model, _dtype(settings)
    if scratch is None and (precomputed is not None or settings.cache.tables == "disk"):
        raise InputError(f"model '{model.name}' needs a directory for its inputs"
                         if precomputed is not None
                         else "cache.tables = disk needs a directory for the tables")
    reader = None
    if precomputed is not None and scratch is not None:
        reader = precomputed.open(InputsContext(
            store, plan, settings, spec, scratch / PRECOMPUTED, workers.world, workers.rank))
    own = plan.partitions[workers.rank].node_types
    used = {t for p in plan.partitions for t in p.node_types}
    featureless = [t for t in store.schema.node_types
                   if t in used and not store.has_array(t, "feat") and reader is None]
    tables = 0  # bytes on disk, at most
    if settings.cache.tables == "disk" and trained is None:
        tables = 3 * model.hidden * dtype.itemsize * sum(
            store.schema.node_counts[t] for t in featureless if t in own)
    rows = sum(store.array(t, "feat").nbytes for t in own if store.has_array(t, "feat"))
    fits = fit_in_memory(workers.local * (rows + tables))  # all that is in files
    make: Callable[[str, int, int, torch.dtype], RowTable] = memory_tables
    if tables and scratch is not None:
        make = DiskTables(scratch, fits)
    static = StaticFeatures(store, own, dtype, workers.device, settings.cache.reads, fits)
    if trained is not None:  # without moments, as nothing is updated
        learnable = LearnableFeatures({}, {}, model.hidden, dtype, workers.world)
        learnable.local.update({t: RowTable(rows, rows, rows) for t, rows in trained.items()})
        return Inputs(static, learnable, reader, fits)
    twice = {*(plan.targets if plan.metapaths or task.held_out else ()),
             *(r.dst for r in plan.offloaded)}
    learnable = LearnableFeatures(
        {t: store.schema.node_counts[t] for t in featureless},
        {t: plan.users(t) for t in featureless},
        model.hidden, dtype, workers.world, train.learnable, AdamSettings(train.sparse_lr),
        train.seed, sorted(twice), make, {t: plan.keepers(t) for t in featureless})
    return Inputs(static, learnable, reader, fits)


def _samplers(store: Store, plan: Plan, settings: Settings, workers: Workers,
              task: TrainingTask, precomputed: InputReader | None, reads_remote: bool
              ) -> tuple[Sampler, Sampler]:
    """The samplers of training and of evaluation."""
    if precomputed is not None:
        blocks = SeedBlocks(precomputed.parts)
        return blocks, blocks
    train, scope = settings.train, SamplingScope.of(plan, workers.rank)

    def sampler(fanouts: list[int]) -> NeighborSampler:
        return NeighborSampler(store, scope, fanouts, train.seed, train.seed_states,
                               agreement(store, workers.sampling), task.held_out,
                               train.sampling_threads or torch.get_num_threads(),
                               delivery(store, workers.sampling), reads_remote)

    training = sampler(train.fanouts)
    return training, training if train.eval_fanouts is None else sampler(train.eval_fanouts)


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


def _cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _dtype(settings: Settings) -> torch.dtype:
    return torch.float64 if settings.train.dtype == "float64" else torch.float32
