"""Settings: one typed model, from a TOML file, the environment and the command line.

Later sources win: defaults, then the file (`-c heta.toml` or `DGL_HETA_CONFIG`), then
environment variables (`DGL_HETA_TRAIN__LR=0.01`), then `--set train.lr=0.01`.

Providers bring settings of their own, in sections `[plugins.NAME]` (`DGL_HETA_PLUGINS__NAME__KEY`,
`--set plugins.NAME.key=value`). They are kept as given here; :meth:`Plugins.configured
<dgl_heta.hooks.manager.Plugins.configured>`, which knows the providers, checks them.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dgl_heta.errors import InputError, listing, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "DGL_HETA_"
PLAIN_VARIABLES = ("DGL_HETA_CONFIG", "DGL_HETA_TRACE", "DGL_HETA_LAUNCHER", "DGL_HETA_RENDEZVOUS",
                   "DGL_HETA_READS")


def default_fanouts(layers: int) -> tuple[int, ...]:
    """Neighbours per relation and layer where none are given: 25, then 20; input layer first."""
    return (25, *[20] * (layers - 1))


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
        return value


_RENAMED = {"cache": {"learnable": "tables"}}
"""Section → settings by the names that they once had: files and recorded runs still have them."""


def _renamed(section: str, content: Mapping[str, Any]) -> dict[str, Any]:
    names = _RENAMED.get(section, {})
    for old, new in names.items():
        if old in content and new in content:
            raise InputError(f"{section}.{old} is the former name of {section}.{new}, and both are "
                             f"set; leave {section}.{old} out")
    return {names.get(key, key): value for key, value in content.items()}


class PartitionSettings(_Section):
    """Which worker gets what."""

    method: str = Field("meta", description="partition backend (see `dgl-heta plugins`)")
    parts: int = Field(2, ge=1, description="number of partitions, one worker each")
    target: str | None = Field(None, description="target node type of a script's "
                               "partition_graph; default: the type with a train_mask")
    metapaths: str | None = Field(None, description="JSON file of metapaths; default: all hops")
    replication: Literal["full", "none"] | None = Field(
        None, description="full: each partition has all relations that its sub-metatrees need; "
        "none: a relation is on one partition only; default: the method's own")
    memory_mb: float | None = Field(None, gt=0, description="memory that a partition may hold, as "
                                    "predicted; with replication = none large relations are cut")
    cut: str | None = Field(None, description="cutter of relations that are too large for a "
                            "partition (see `dgl-heta plugins`); default: the method's own, or "
                            "ranges of destinations")
    hubs: float = Field(1.0, ge=0, description="with another cut than ranges: the in-edges of one "
                        "node are cut, too, if they are more than so many even pieces; 0: never")
    seed: int = Field(0, ge=0, description="seed of backends that draw at random")


class TaskSettings(_Section):
    """What to train for, where it is not the task that the graph comes with."""

    kind: Literal["classification", "multilabel", "regression", "link"] | None = Field(
        None, description="default: the graph's own, or classification")
    targets: list[str] | None = Field(
        None, description="node types to predict labels of; default: the graph's own")
    label: str | None = Field(None, description="their node array; default: label")
    relation: str | None = Field(None, description="relation to predict (link prediction): "
                                 "'src etype dst', or its etype")
    reverse: str | None = Field(None, description="its reverse relation, '' if there is none; its "
                                "edges must not give the answer away")
    held_out: float = Field(0.1, gt=0, lt=0.5, description="share of the relation's edges held "
                            "out for validation, and as many for the test")
    negatives: int = Field(1, ge=1, description="negative destinations per edge in training")
    eval_negatives: int = Field(50, ge=1, description="the same in evaluation, to rank among")

    @field_validator("targets", mode="before")
    @classmethod
    def _by_commas(cls, value: Any) -> Any:
        return [t.strip() for t in value.split(",")] if isinstance(value, str) else value


class ModelSettings(_Section):
    """The model."""

    name: str = Field("rgcn", description="model provider")
    layers: int = Field(2, ge=1, description="layers of the model, hops of the plan")
    hidden: int = Field(64, ge=1, description="width of hidden states and learnable features")
    subsets: int = Field(8, ge=1, description="subsets of relations (nars)")
    heads: int = Field(4, ge=1, description="attention heads (rgat, han, hgt, sehgnn)")
    bases: int = Field(0, ge=0, description="R-GCN bases; 0 gives every relation its own weight")
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
    fanouts: list[int] = Field(
        list(default_fanouts(2)), description="neighbours per relation and layer, input layer "
        "first; -1 for all; default: 25, then 20 for every further layer")
    eval_fanouts: list[int] | None = Field(None, description="the same for evaluation")
    lr: float = Field(0.01, gt=0, description="learning rate of dense parameters (Adam)")
    sparse_lr: float = Field(0.01, gt=0, description="learning rate of learnable features")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of dense parameters")
    seed: int = Field(0, ge=0, description="seed of initialisation, shuffling and sampling")
    wrapper: str = Field("raf", description="module wrapper")
    trainers: int = Field(1, ge=1, description="workers per partition; they share its files and "
                          "each has its part of the seeds")
    learnable: Literal["exact", "replica"] = Field(
        "exact", description="learnable features of types that several workers use: one owner "
        "per row (exact) or a copy per worker (replica)")
    kernel: str = Field("fused", description="aggregation kernel")
    batches: str = Field("on-demand", description="batch source: when batches are sampled")
    precompute_mb: int = Field(512, ge=1, description="memory of buffers in which sehgnn and nars "
                               "compute neighbour averages, per worker")
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
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    threads: int = Field(0, ge=0, description="CPU threads per worker; 0 shares the cores evenly")
    eval_every: int = Field(1, ge=1, description="epochs between validations")

    @field_validator("fanouts", "eval_fanouts", mode="before")
    @classmethod
    def _one_layer(cls, value: Any) -> Any:
        return [value] if type(value) is int else value

    @field_validator("fanouts", "eval_fanouts")
    @classmethod
    def _known_fanouts(cls, value: list[int] | None) -> list[int] | None:
        for fanout in value or []:
            if fanout < 1 and fanout != -1:
                raise ValueError("a fanout is 1 or more, or -1 for all neighbours")
        return value


class CacheSettings(_Section):
    """Which feature rows stay in faster memory: a GPU's, or RAM in front of files."""

    policy: str = Field("none", description="cache policy (see `dgl-heta plugins`)")
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
        "memory", description="where learnable features live (also read: cache.learnable, which "
        "it was called once)")
    profile: str | None = Field(None, description="directory of a profile (`dgl-heta profile "
                                "--out`); default: with the partition or the store")
    gate: bool = Field(True, description="do not cache types of which a miss was measured to cost "
                       "nothing; false caches them all the same")

    @model_validator(mode="before")
    @classmethod
    def _by_old_names(cls, values: Any) -> Any:
        return _renamed("cache", values) if isinstance(values, Mapping) else values


class RunSettings(_Section):
    """Around the training."""

    directory: str | None = Field(None, description="run directory; default: runs/NAME-TIME")
    timeout_s: float = Field(300, gt=0, description="limit of every wait for another worker")
    verify: bool = Field(True, description="compare the checksums of the store's files first")
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

    def check(self) -> Settings:
        """Check what concerns several sections.

        Raises
        ------
        InputError
            Not one fanout per layer, a self-loop without the seeds' states.
        """
        if self.model.self_loop and not self.train.seed_states:
            raise InputError("model.self_loop = true reads the destination's state, which "
                             "train.seed_states = false leaves out; set one of them otherwise")
        for name in ("fanouts", "eval_fanouts"):
            fanouts = getattr(self.train, name)
            if fanouts is not None and len(fanouts) != self.model.layers:
                raise InputError(
                    f"train.{name} has {len(fanouts)} entries, but model.layers is "
                    f"{self.model.layers}; give one fanout per layer, input layer first"
                )
        return self


def load_settings(
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from all sources.

    Parameters
    ----------
    file : TOML file; default: what DGL_HETA_CONFIG names, or none.
    overrides : `section.key=value` strings, the value in TOML (a bare word is a string).
    environ : environment to read, default `os.environ`.
    base : nested values that are weaker than all of these.

    Raises
    ------
    InputError
        An unknown key (naming the nearest), a value of the wrong type, an unreadable file.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for section, content in (base or {}).items():
        values[section] = copy.deepcopy(dict(content))
    file = file or environ.get("DGL_HETA_CONFIG") or None
    if file:
        _merge(values, _read_toml(Path(file)), str(file))
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and name not in PLAIN_VARIABLES:
            section, _, key = name[len(ENV_PREFIX):].lower().partition("__")
            _merge(values, _one(section, key.replace("__", "."), text), f"variable {name}")
    for text in overrides:
        path, equals, value = text.partition("=")
        section, dot, key = path.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"--set {text}: write section.key=value, for example train.lr=0.01"
                             + _suggestion(path.strip()))
        _merge(values, _one(section, key, value), f"--set {text}")
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _wrong(error) from None
    if "fanouts" not in values.get("train", {}):
        fanouts = list(default_fanouts(settings.model.layers))
        train = settings.train.model_copy(update={"fanouts": fanouts})
        settings = settings.model_copy(update={"train": train})
    return settings.check()


def keys() -> dict[str, Any]:
    """All settings as `section.key` → pydantic field."""
    return {f"{section}.{key}": field
            for section, info in Settings.model_fields.items() if section != "plugins"
            for key, field in info.default.__class__.model_fields.items()}


def read_section(model: type[BaseModel], values: Mapping[str, Any], name: str) -> BaseModel:
    """The section `name` of a provider, by its model; strings are read as those of `--set` are.

    Raises
    ------
    InputError
        An unknown key (naming the nearest), a value of the wrong type or out of range.
    """
    fields = model.model_fields
    read = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"unknown setting '{name}.{key}'; settings: "
                             f"{listing(f'{name}.{k}' for k in fields)}" + nearest(key, fields))
        annotation = fields[key].annotation
        read[key] = _parse(value, annotation) if isinstance(value, str) else value
        if isinstance(read[key], bool) and not _may_be(bool, annotation):
            raise InputError(f"setting {name}.{key}: this setting is no switch, so it cannot be "
                             f"true or false; got {read[key]!r}")
    try:
        return model(**read)
    except ValidationError as error:
        refused = {each["loc"][:1] for each in error.errors()}
        with contextlib.suppress(ValidationError):  # a choice of texts may look like a number
            return model(**{key: values[key] if (key,) in refused else value
                            for key, value in read.items()})
        raise _wrong(error, name) from None


def _wrong(error: ValidationError, *section: str) -> InputError:
    first = error.errors()[0]
    where = ".".join(map(str, (*section, *first["loc"])))
    message = first["msg"].removeprefix("Value error, ")
    return InputError(f"setting {where}: {message}; got {first['input']!r}")


def _one(section: str, key: str, text: str) -> dict[str, Any]:
    """Nested values with one in them; a provider's own stays text until its type is known."""
    if section == "plugins":
        name, _, key = key.rpartition(".")
        return {section: {name: {key: text}} if name else {key: text} if key else text}
    field = keys().get(f"{section}.{key}")
    return {section: {key: _parse(text, field.annotation if field else None)} if key else text}


def _merge(values: dict[str, Any], new: Mapping[str, Any], origin: str) -> None:
    known = keys()
    for section, content in new.items():
        if section == "plugins":
            _merge_plugins(values.setdefault(section, {}), content, origin)
            continue
        if section not in Settings.model_fields:
            raise InputError(f"{origin}: unknown section '{section}'; sections: "
                             f"{listing(Settings.model_fields)}"
                             + nearest(section, Settings.model_fields))
        if not isinstance(content, Mapping):
            raise InputError(f"{origin}: '{section}' is a section; set its keys: "
                             f"{listing(k for k in known if k.startswith(section + '.'))}")
        content = _renamed(section, content)
        for key in content:
            name = f"{section}.{key}"
            if name not in known:
                raise InputError(f"{origin}: unknown setting '{name}'"
                                 + (_suggestion(name) or f"; settings: {listing(known, 40)}"))
        values.setdefault(section, {}).update(content)


def _merge_plugins(values: dict[str, dict[str, Any]], new: Any, origin: str) -> None:
    sections = new if isinstance(new, Mapping) else {"": None}
    for name, content in sections.items():
        if not name or not isinstance(content, Mapping):
            raise InputError(f"{origin}: 'plugins' has a section for each provider; write "
                             f"plugins.{name or 'NAME'}.key=value, or [plugins.{name or 'NAME'}] "
                             "in TOML")
        values.setdefault(section_name(name), {}).update(content)


def section_name(provider: str) -> str:
    """The key of a provider's section: its name as a variable of the environment can have it."""
    return provider.lower().replace("-", "_")


def _suggestion(name: str) -> str:
    """The nearest setting: the same key in another section, or the most similar name."""
    known = list(keys())
    same = [k for k in known if k.partition(".")[2] == name.rpartition(".")[2]]
    if same:
        return nearest(name, same) or f"; did you mean '{same[0]}'?"
    return nearest(name, known)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read settings {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"settings {path} are not TOML: {error}") from None


def _may_be(kind: type, annotation: Any) -> bool:
    """Whether an annotation is a type, or a union (`X | None`) or a list that has it."""
    return annotation in (kind, Any) or any(_may_be(kind, a) for a in get_args(annotation))


def _parse(text: str, annotation: Any) -> Any:
    """A TOML value, with brackets around a list left out or not; else, the text itself.

    A setting that is text needs no quotes, whatever it looks like (a year, `a,b`).
    """
    textual = annotation in (str, str | None, Path, Path | None)
    for toml in (text, f"[{text}]") if text.strip() else ():
        try:
            value = tomllib.loads(f"value = {toml}")["value"]
        except tomllib.TOMLDecodeError:
            continue
        return text if textual and not isinstance(value, str) else value
    return text
