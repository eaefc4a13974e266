"""Every setting, defined once: sections, with names, types, defaults and meanings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from dgl_heta.errors import InputError
from dgl_heta.settings.fanouts import LARGEST, check_layers, default_fanouts, wrong_fanout
from dgl_heta.settings.origins import Origin


def by_commas(value: Any) -> Any:
    """Names, from a text with commas."""
    return [t.strip() for t in value.split(",")] if isinstance(value, str) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True,
                              allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        values = value if isinstance(value, list) else [value]
        if annotation is not bool and any(isinstance(v, bool) for v in values):
            raise ValueError("this setting is no switch, so it cannot be true or false")
        if any(isinstance(v, int) and abs(v) >= 2**63 for v in values):
            raise ValueError("whole numbers are below 2^63")
        return value

    @field_validator("target", "targets", "columns", "metrics", "loggers", mode="before",
                     check_fields=False)
    @classmethod
    def _names(cls, value: Any) -> Any:
        return by_commas(value)


class PartitionSettings(_Section):
    """Which worker gets what."""

    method: str = Field("meta", description="partition backend (see `dgl-heta plugins`)")
    parts: int = Field(2, ge=1, description="number of partitions, one worker each")
    target: list[str] | None = Field(None, description="target node types of a script's "
                                     "partition_graph; default: the type with a train_mask, or "
                                     "the ends of the relations with one")
    metapaths: str | None = Field(None, description="JSON file of metapaths; default: all hops")
    replication: Literal["full", "none"] | None = Field(
        None, description="full: each partition has all relations that its sub-metatrees need; "
        "none: a relation is on one partition only; default: the method's own")
    memory_mb: float | None = Field(None, gt=0, le=1e12, description="memory that a partition may "
                                    "hold, as predicted; with replication = none large relations "
                                    "are cut")
    cut: str | None = Field(None, description="cutter of relations that are too large for a "
                            "partition (see `dgl-heta plugins`); default: the method's own, or "
                            "ranges of destinations")
    hubs: float = Field(1.0, ge=0, description="with another cut than ranges: the in-edges of one "
                        "node are cut, too, if they are more than so many even pieces; 0: never")
    shared: Literal["rows", "delegate", "auto"] = Field(
        "auto", description="learnable features that several partitions read: rows: they and their "
        "gradients move; delegate: one partition aggregates them for all; auto: whichever sends "
        "fewer bytes, as predicted")
    seed: int = Field(0, ge=0, description="seed of backends that draw at random")
    graphbolt: str | None = Field(None, description="GraphBolt scripts: the partition (a directory "
                                  "that `dgl-heta partition` wrote) of the data set that the "
                                  "script loads, which is sampled by relation")

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a partition may hold."""
        return None if self.memory_mb is None else round(self.memory_mb * 1e6)


class TaskSettings(_Section):
    """The task to train for, where it is not the one that the graph comes with."""

    kind: Literal["classification", "multilabel", "regression", "link"] | None = Field(
        None, description="default: the graph's own, or classification")
    targets: list[str] | None = Field(
        None, description="node types to predict labels of; default: the graph's own")
    label: str | None = Field(None, description="their node array; default: label")
    unlabelled: float | None = Field(None, description="a value of these labels, besides NaN, that "
                                     "stands for none, such as -1; default: the graph's own")
    relation: str | list[str] | None = Field(
        None, description="relation to predict (link prediction), or several, or * for all: 'src "
        "etype dst', or its etype")
    reverse: str | list[str] | None = Field(
        None, description="relations that have the same links, in either direction, beside those "
        "that are found in the graph; none: no others than are named, and one direction alone")
    held_out: float = Field(0.1, gt=0, lt=0.5, description="share of the relation's edges held "
                            "out for validation, and as many for the test")
    links: str | None = Field(
        None, description="a table (CSV, Parquet, Arrow) that says which links are for training, "
        "validation and test, in place of held_out: columns src, dst and split, and relation "
        "where there are several")
    table: str | None = Field(
        None, description="seeds of a graph with times: a table (Parquet, CSV, Arrow) of ids, "
        "times and labels, an id as often as one likes, or of links' ends and times, or a "
        "directory with files train, val and test; default: each row of the target, or edge of the "
        "relation, at its own time")
    columns: list[str] = Field(
        ["id", "time", "label"], min_length=3, max_length=3, description="its columns, in this "
        "order, of links by default src, dst and time; a further one, split, says train, val or "
        "test")
    val_time: str | None = Field(None, description="seeds from this time on are for validation "
                                 "(2026-11-23, or 2026-11-23T09:30:00+01:00)")
    test_time: str | None = Field(None, description="seeds from this time on are for the test")
    decoder: Literal["dot", "distmult"] = Field(
        "dot", description="score of a link: the dot product of its ends' outputs, or DistMult, "
        "with a vector of each relation")
    negatives: int = Field(1, ge=1, description="negative destinations per edge in training")
    eval_negatives: int = Field(50, ge=1, description="the same in evaluation, to rank among")

    @property
    def of_links(self) -> bool:
        """Return whether links are predicted."""
        return self.kind == "link" or (self.kind is None and bool(self.relation))


class ModelSettings(_Section):
    """The model."""

    name: str = Field("rgcn", description="model provider")
    layers: int = Field(2, ge=1, le=100, description="layers of the model, hops of the plan")
    hidden: int = Field(64, ge=1, le=65536, description="width of hidden states and learnable "
                        "features")
    subsets: int = Field(8, ge=1, le=4096, description="subsets of relations (nars)")
    heads: int = Field(4, ge=1, le=1024, description="attention heads (rgat, han, hgt, sehgnn)")
    bases: int = Field(0, ge=0, le=65536, description="R-GCN bases; 0 gives every relation its own "
                       "weight")
    self_loop: bool = Field(True, description="add the destination's own state")
    layer_norm: bool = Field(False, description="normalise hidden states")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states")
    aggregate: Literal["sum", "mean", "max", "min"] = Field(
        "mean", description="AGG_r, over the neighbours by one relation")
    reduce: Literal["sum", "mean", "max", "min"] = Field(
        "sum", description="AGG_all, over the relations")


class TrainSettings(_Section):
    """How to train."""

    epochs: int = Field(10, ge=1, description="passes over the training nodes")
    batch_size: int = Field(1024, ge=1, description="seeds per worker and step")
    global_batch_size: int | None = Field(
        None, ge=1, description="instead of batch_size: seeds of all workers together, so that any "
        "number of workers takes the same steps (dgl-heta train)")
    fanouts: list[int] = Field(
        list(default_fanouts(2)), description="neighbours per relation and layer, input layer "
        "first; -1 for all; default: 25, then 20 for every further layer")
    eval_fanouts: list[int] | None = Field(None, description="the same for evaluation")
    latest: bool = Field(False, description="in a graph with times: draw the latest neighbours "
                         "that a seed's time lets it see, in place of any of them")
    strictly_before: bool = Field(False, description="in a graph with times: a seed sees what is "
                                  "there before its time, not what begins at it")
    lr: float = Field(0.01, gt=0, description="learning rate of dense parameters")
    sparse_lr: float = Field(0.01, gt=0, description="learning rate of learnable features")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of dense parameters")
    optimizer: str = Field("Adam", description="of dense parameters: a class of torch.optim "
                           "(dgl-heta train)")
    optimizer_options: dict[str, bool | int | float | str | list[int | float]] = Field(
        {}, description="its further options, e.g. --set 'train.optimizer_options={momentum=0.9}'")
    schedule: str | None = Field(
        None, description="of lr, with a step after each epoch: a class of torch.optim.lr_scheduler"
        " (dgl-heta train)")
    schedule_options: dict[str, bool | int | float | str | list[int | float]] = Field(
        {}, description="its options, e.g. --set 'train.schedule_options={T_max=10}'")
    clip_grad_norm: float | None = Field(
        None, gt=0, description="the most that the norm of all dense gradients together may be; "
        "larger ones are scaled down (dgl-heta train)")
    class_weights: Literal["balanced"] | list[float] | None = Field(
        None, description="weights of the classes in the loss: balanced (inverse to how often they "
        "are in training) or a number for each (dgl-heta train)")
    early_stopping: int | None = Field(
        None, ge=1, description="end the training after so many epochs without a better validation "
        "score; default: never (dgl-heta train)")
    metrics: list[str] = Field(
        [], description="further metrics of validation and test, e.g. f1_macro,auroc; which there "
        "are depends on task.kind (dgl-heta train)")
    monitor: str | None = Field(
        None, description="the metric that the best epoch, early_stopping and ReduceLROnPlateau "
        "follow; default: the task's own score (dgl-heta train)")
    seed: int = Field(0, ge=0, description="seed of initialisation, shuffling and sampling")
    wrapper: str = Field("raf", description="module wrapper")
    trainers: int = Field(1, ge=1, le=1024, description="workers per partition; they share its "
                          "files and each has its part of the seeds")
    learnable: Literal["exact", "replica"] = Field(
        "exact", description="learnable features of types that several workers use: one owner "
        "per row (exact) or a copy per worker (replica)")
    kernel: str = Field("auto", description="aggregation kernel; auto: merged on GPUs (dgl-heta "
                        "train, loops of one's own) if dgl-heta-hifuse is installed, else fused")
    batches: str = Field("auto", description="batch source: when batches are sampled; auto: ahead "
                         "of time on GPUs if dgl-heta-hifuse is installed, else on demand")
    precompute_mb: int = Field(512, ge=1, description="memory of buffers in which sehgnn and nars "
                               "compute their inputs, per worker")
    complete_states: bool = Field(
        False, description="DistDGL scripts: complete all seeds' states below the last layer on "
        "all machines, not only those that are read there; for models that look at all rows of a "
        "batch together, as BatchNorm does, for which it is done anyway")
    lazy_features: bool = Field(
        True, description="DistDGL scripts: static features wait until their values are needed, so "
        "that they can be aggregated before they are multiplied by a weight")
    seed_states: bool = Field(
        True, description="complete the seeds' states below the last layer; false saves an "
        "exchange per layer for models that do not read the destination's state")
    dtype: Literal["float32", "float64"] = Field("float32", description="of states and parameters")
    autocast: Literal["off", "bfloat16"] = Field(
        "off", description="mixed precision, by torch.autocast: products of matrices in bfloat16, "
        "sums over edges and relations, states and parameters in float32 (dgl-heta train)")
    exchange_dtype: Literal["same", "bfloat16"] = Field(
        "same", description="what float32 partial aggregations, learnable rows and their gradients "
        "are sent as; bfloat16 halves these bytes, and they are still summed as float32 (e.g. "
        "--set train.exchange_dtype=bfloat16)")
    device: Literal["auto", "cpu", "cuda", "cuda-shared"] = Field(
        "auto", description="where to compute: cuda on a GPU per worker, auto too if each has one; "
        "cuda-shared on GPUs that several workers share")
    threads: int = Field(0, ge=0, le=4096, description="CPU threads per worker; 0 shares the cores "
                         "evenly, on a GPU 1")
    sampling_threads: int = Field(
        0, ge=0, le=4096, description="threads that draw a batch's relations side by side, which "
        "gives the same batches; 0: as many as compute; for a GPU four at "
        "most, and one where batches are sampled side by side (pipeline)")
    eval_every: int = Field(1, ge=1, description="epochs between validations")

    @property
    def watched(self) -> list[str]:
        """The metrics to compute, each once."""
        return list(dict.fromkeys([*self.metrics, *([self.monitor] if self.monitor else [])]))

    def step_size(self, workers: int) -> int:
        """Seeds of a step over so many workers."""
        return self.global_batch_size or self.batch_size * workers

    @field_validator("class_weights")
    @classmethod
    def _known_weights(cls, value: Any) -> Any:
        if isinstance(value, list) and not (all(v >= 0 for v in value) and any(value)):
            raise ValueError("weights are 0 or more, and not all of them 0")
        return value

    @field_validator("fanouts", "eval_fanouts", mode="before")
    @classmethod
    def _one_layer(cls, value: Any) -> Any:
        return [value] if type(value) is int else value

    @field_validator("fanouts", "eval_fanouts")
    @classmethod
    def _known_fanouts(cls, value: list[int] | None) -> list[int] | None:
        for fanout in value or []:
            if why := wrong_fanout(fanout, below=LARGEST):
                raise ValueError(why)
        return value


ON_GPUS = "miss_penalty"
"""The cache policy that `auto` stands for on GPUs."""


class CacheSettings(_Section):
    """Which feature rows stay in faster memory: a GPU's, or RAM in front of files."""

    policy: str = Field("auto", description="cache policy (see `dgl-heta plugins`); auto: "
                        "miss_penalty where dgl-heta train computes on GPUs, elsewhere none")
    capacity_mb: float | None = Field(
        None, ge=0, description="capacity per device; default: 4,000, at most half of what is free")
    epochs: float = Field(0.5, gt=0, le=100, description="epochs of pre-sampling to count visits "
                          "in; a part of one will do")
    batches: int = Field(50, ge=1, description="batches to count visits in, and to fill the cache "
                         "after, where a script samples (GraphBolt, DistDGL)")
    reads: Literal["auto", "mapped", "direct"] = Field(
        "auto", description="how static rows are read from files: memory-mapped, or directly, past "
        "the page cache; auto: directly if a worker's files take more than half of free memory")
    tables: Literal["memory", "disk"] = Field(
        "memory", description="where learnable features live")
    profile: str | None = Field(None, description="directory of a profile (`dgl-heta profile "
                                "--out`); default: with the partition or the store")
    gate: bool = Field(True, description="do not cache types of which a miss was measured to cost "
                       "nothing; false caches them all the same")

    def policy_on(self, gpu: bool) -> str:
        """The policy's name, with what `auto` stands for on GPUs and elsewhere."""
        return self.policy if self.policy != "auto" else ON_GPUS if gpu else "none"


class RunSettings(_Section):
    """Around the training."""

    directory: str | None = Field(None, description="run directory; default: runs/NAME-TIME")
    timeout_s: float = Field(300, ge=1, le=1e7, description="limit of every wait for another "
                             "worker, in seconds")
    loggers: list[str] = Field([], description="where the figures of each epoch go besides the run "
                               "directory: tensorboard, or plugins' (dgl-heta train)")
    verify: bool = Field(True, description="compare the checksums of a store's files first")
    record: str | None = Field(None, description="DistDGL scripts: directory to record the first "
                               "steps in, as `dgl-heta prove` does; the script ends after them")
    reference: bool = Field(False, description="DistDGL scripts: run as with plain DGL, for "
                            "`dgl-heta prove` to compare with")
    double: bool = Field(False, description="DistDGL scripts that are recorded: compute in double "
                         "precision, as `dgl-heta prove --double` does")
    prove: str = Field(
        "auto", description="steps at which it is compared with the plain way on copies in fp64: "
        "auto (the first, the last of the first epoch, a random one per epoch), off, N (the first "
        "N), every N")

    @field_validator("prove", mode="before")
    @classmethod
    def _known_steps(cls, value: Any) -> Any:
        text = str(value) if type(value) is int else value
        if not isinstance(text, str) or not re.fullmatch(r"auto|off|(every +)?[0-9]+", text) or (
                re.fullmatch("every +0+", text)):
            raise ValueError("it is auto, off, N (the first N steps) or every N")
        return text


class Settings(_Section):
    """All settings of dgl-heta; `plugins` has the sections of providers (by
    :func:`section_name`) as given."""

    partition: PartitionSettings = PartitionSettings()
    task: TaskSettings = TaskSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    cache: CacheSettings = CacheSettings()
    run: RunSettings = RunSettings()
    plugins: dict[str, dict[str, Any]] = {}
    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @property
    def strictly_before(self) -> bool:
        """Return whether seeds with times see only what is before: a link is an edge itself."""
        return self.train.strictly_before or self.task.of_links

    def __eq__(self, other: object) -> bool:
        """Compare values; who named them makes no difference."""
        return isinstance(other, Settings) and self.model_dump() == other.model_dump()

    def note_origins(self, origins: Mapping[str, Origin]) -> None:
        """Note who named each setting ("section.key"), once, when they are loaded."""
        self._origins.update(origins)

    def origin(self, name: str) -> Origin:
        """Who named the value of a setting, by its name "section.key"."""
        section, _, key = name.partition(".")
        given: set[str] = getattr(self, section).model_fields_set
        return self._origins.get(name, Origin.PROGRAM if key in given else Origin.DEFAULT)

    def asked(self, section: str) -> dict[str, Any]:
        """The values of a section that somebody asked for, by key."""
        values = getattr(self, section)
        return {key: getattr(values, key) for key in type(values).model_fields
                if self.origin(f"{section}.{key}").asked}

    def check(self) -> Settings:
        """Check what concerns several sections.

        Raises
        ------
        InputError
            Not one fanout per layer, a self-loop without the seeds' states, double precision whose
        exchange is rounded.
        """
        if self.model.self_loop and not self.train.seed_states:
            raise InputError("model.self_loop = true reads the destination's state, which "
                             "train.seed_states = false leaves out; set one of them otherwise")
        if self.train.dtype == "float64" and self.train.exchange_dtype != "same":
            raise InputError("train.dtype = float64 is for exact numbers, which train."
                             f"exchange_dtype = {self.train.exchange_dtype} would round; set one "
                             "of them otherwise")
        if self.train.dtype == "float64" and self.train.autocast != "off":
            raise InputError("train.dtype = float64 is for exact numbers, which train.autocast = "
                             f"{self.train.autocast} would round; set one of them otherwise")
        for name in ("fanouts", "eval_fanouts"):
            fanouts = getattr(self.train, name)
            if fanouts is not None:
                check_layers(fanouts, self.model.layers, f"train.{name}",
                             f"model.layers is {self.model.layers}")
        return self
