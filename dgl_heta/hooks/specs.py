"""The hooks of dgl-heta: the whole contract with plugins, on one page.

A plugin is a distribution with an entry point in group `dgl_heta` that names a module (or
object) with functions marked `@dgl_heta.hookimpl`. The built-ins register the same way. Each
`dgl_heta_…s` hook returns a list of providers: objects with a `name` that settings select by.
Their protocols are in `dgl_heta.hooks.protocols`; docs/hooks.md has an example of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from dgl_heta.hooks import protocols
    from dgl_heta.hooks.kernel_protocol import Kernel

hookspec = pluggy.HookspecMarker("dgl_heta")
hookimpl = pluggy.HookimplMarker("dgl_heta")


@hookspec
def dgl_heta_partition_backends() -> list[protocols.PartitionBackend]:  # type: ignore[empty-body]
    """Ways to partition a graph; selected by `partition.method`, `--method` or part_method."""


@hookspec
def dgl_heta_cutters() -> list[protocols.Cutter]:  # type: ignore[empty-body]
    """Ways to cut a relation that is too large for a partition; selected by `partition.cut`."""


@hookspec
def dgl_heta_module_wrappers() -> list[protocols.ModuleWrapper]:  # type: ignore[empty-body]
    """Ways to run a single-process model on several workers; selected by `train.wrapper`."""


@hookspec
def dgl_heta_cache_policies() -> list[protocols.CachePolicy]:  # type: ignore[empty-body]
    """Which feature rows to keep close to the processor, given counts, sizes and penalties."""


@hookspec
def dgl_heta_kernels() -> list[Kernel]:  # type: ignore[empty-body]
    """Aggregation kernels (AGG_r); selected by `train.kernel`."""


@hookspec
def dgl_heta_batch_sources() -> list[protocols.BatchSource]:  # type: ignore[empty-body]
    """When mini-batches are sampled, and by which threads; selected by `train.batches`."""


@hookspec
def dgl_heta_loggers() -> list[protocols.Logger]:  # type: ignore[empty-body]
    """Where the figures of a run go besides its directory; selected by `run.loggers`."""


@hookspec
def dgl_heta_datasets() -> list[protocols.Dataset]:  # type: ignore[empty-body]
    """Graphs by name, for the command line; listed by `dgl-heta datasets`."""


@hookspec
def dgl_heta_readers() -> list[protocols.Reader]:  # type: ignore[empty-body]
    """Formats of graphs on disk, for the command line; told apart by what a path holds."""


@hookspec
def dgl_heta_models() -> list[protocols.ModelProvider]:  # type: ignore[empty-body]
    """Models, written for one process; selected by `model.name`."""


@hookspec
def dgl_heta_model_inputs() -> list[protocols.ModelInputs]:  # type: ignore[empty-body]
    """Inputs that are computed before training, for models that sample nothing."""


@hookspec
def dgl_heta_programs() -> list[protocols.Program]:  # type: ignore[empty-body]
    """Programs that are adapted when a DistDGL script imports them."""


@hookspec
def dgl_heta_commands() -> list[protocols.Command]:  # type: ignore[empty-body]
    """Commands `dgl-heta NAME …` of a plugin."""


@hookspec
def dgl_heta_patches() -> list[protocols.Patches]:  # type: ignore[empty-body]
    """Return the changes to other packages while dgl-heta is enabled in a process."""


@hookspec
def dgl_heta_settings() -> list[protocols.Provider]:  # type: ignore[empty-body]
    """Sections `[plugins.NAME]` of a plugin that has settings without such a provider."""


@hookspec
def dgl_heta_run_started(run_dir: Path, rank: int, settings: dict[str, Any]) -> None:
    """Training starts on a worker."""


@hookspec
def dgl_heta_epoch_ended(run_dir: Path, rank: int, metrics: dict[str, Any]) -> None:
    """An epoch has ended on a worker; `metrics` is its line of metrics.jsonl."""


@hookspec
def dgl_heta_run_ended(run_dir: Path, rank: int, summary: dict[str, Any]) -> None:
    """Training has ended on a worker without an error."""
