"""Names for plugins, beside the protocols and classes of `dgl_heta`; docs/hooks.md has a table.

These names and those of `dgl_heta`, `dgl_heta.nn`, `dgl_heta.cache`, `dgl_heta.graphbolt` and
`dgl_heta.store` are public: :data:`PUBLIC`. What lies in other modules may change at any time. A
name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

PUBLIC = ("dgl_heta", "dgl_heta.tools", "dgl_heta.nn", "dgl_heta.cache", "dgl_heta.graphbolt",
          "dgl_heta.store")
"""Modules whose `__all__` is public."""

_LAZY = {
    # compiled code, files, packages
    "COMPILES": "dgl_heta.system.jit",
    "kernel": "dgl_heta.system.jit",
    "prefetch": "dgl_heta.system.prefetch",
    "new_rows": "dgl_heta.features.row_kernels",
    "gather_rows": "dgl_heta.features.row_kernels",
    "initial_rows": "dgl_heta.features.learnable",
    "StaticFeatures": "dgl_heta.features.static",
    "new_directory": "dgl_heta.system.atomic_files",
    "replacing": "dgl_heta.system.atomic_files",
    "write_atomic": "dgl_heta.system.atomic_files",
    "check_file": "dgl_heta.system.checksums",
    "agrees": "dgl_heta.system.checksums",
    "file_sum": "dgl_heta.system.checksums",
    "read_signed": "dgl_heta.system.checksums",
    "write_signed": "dgl_heta.system.checksums",
    "log_line": "dgl_heta.report.metrics_log",
    "new_array": "dgl_heta.system.disk",
    "check_room": "dgl_heta.system.disk",
    "reserve": "dgl_heta.system.disk",
    "scratch_directory": "dgl_heta.system.leftovers",
    "Patch": "dgl_heta.system.patching",
    "PatchTable": "dgl_heta.system.patching",
    "patch_all": "dgl_heta.system.patching",
    "plain": "dgl_heta.system.patching",
    "homes": "dgl_heta.distdgl.versions",
    "state_of": "dgl_heta.distdgl.state",
    "wrapper_for_any_graph": "dgl_heta.distdgl.state",
    "optional": "dgl_heta.system.optional",
    "peak_rss_mb": "dgl_heta.system.memory",
    # graphs and partitions
    "MASKS": "dgl_heta.graph.source",
    "check_archive": "dgl_heta.graph.readers.sizes",
    "check_source": "dgl_heta.store.source_checks",
    "changed": "dgl_heta.store.structure",
    "NodeShape": "dgl_heta.graph.datasets.synthetic",
    "RelationShape": "dgl_heta.graph.datasets.synthetic",
    "Shape": "dgl_heta.graph.datasets.synthetic",
    "generate": "dgl_heta.graph.datasets.synthetic",
    "config_name": "dgl_heta.partition.part_config",
    "is_part_config": "dgl_heta.partition.directory",
    "make_request": "dgl_heta.partition.request",
    "graph_names": "dgl_heta.graph.source",
    "open_input": "dgl_heta.partition.graph_input",
    "part_tensor": "dgl_heta.graph.source",
    "read_dgl_graph": "dgl_heta.graph.readers.dgl_graph",
    # tables of rows
    "ALWAYS": "dgl_heta.graph.source",
    "REVERSE": "dgl_heta.graph.changes",
    "with_reverse": "dgl_heta.graph.changes",
    "NodeIds": "dgl_heta.graph.node_ids",
    "ColumnTable": "dgl_heta.graph.readers.table_reader:Table",
    "table_features": "dgl_heta.graph.readers.table_features",
    "task_columns": "dgl_heta.graph.readers.columns",
    "masks_of": "dgl_heta.graph.readers.splits",
    "split_words": "dgl_heta.graph.readers.splits:words",
    "column_seconds": "dgl_heta.graph.readers.times:seconds",
    "read_instant": "dgl_heta.graph.readers.times",
    "joined_labels": "dgl_heta.graph.readers.arrays",
    "node_array": "dgl_heta.graph.readers.arrays",
    "node_mask": "dgl_heta.graph.readers.arrays",
    "node_task": "dgl_heta.graph.readers.arrays",
    "as_text": "dgl_heta.graph.readers.column_values",
    "plain_column": "dgl_heta.graph.readers.column_values:plain",
    "sort_of": "dgl_heta.graph.readers.column_values",
    "IdShards": "dgl_heta.graph.readers.id_shards",
    "TextFile": "dgl_heta.graph.readers.id_shards",
    "ArrayFile": "dgl_heta.graph.readers.id_shards",
    "mapped_files": "dgl_heta.graph.readers.id_shards:mapped",
    "read_section": "dgl_heta.settings",
    "read_toml": "dgl_heta.settings.toml",
    # providers, settings, messages
    "Plugins": "dgl_heta.hooks.manager",
    "plugins": "dgl_heta.hooks.manager",
    "load_settings": "dgl_heta.settings",
    "section_name": "dgl_heta.settings",
    "listing": "dgl_heta.errors",
    "nearest": "dgl_heta.errors",
    "quoted": "dgl_heta.errors",
    # workers, and what they exchange
    "Comm": "dgl_heta.comm.collectives",
    "PeerLostError": "dgl_heta.comm.collectives",
    "Traffic": "dgl_heta.comm.collectives",
    "init_workers": "dgl_heta.comm.collectives",
    "data_parallel": "dgl_heta.raf.wrapper",
    "run_workers": "dgl_heta.launch.local",
    "Loader": "dgl_heta.training.loader",
    "LinkStep": "dgl_heta.training.tasks",
    "share_of": "dgl_heta.training.tasks.task",
    "DistributedModel": "dgl_heta.training.distributed",
    "Place": "dgl_heta.training.batches",
    "Moments": "dgl_heta.sampling.moments",
    "StepProof": "dgl_heta.training.step_proof",
    "TrainingSetting": "dgl_heta.training.step_proof",
    "NotProvedError": "dgl_heta.proof.copies",
    "GroupExchange": "dgl_heta.raf.exchange",
    "worker_main": "dgl_heta.launch.worker:main",
    "InEdges": "dgl_heta.sampling.blocks",
    "Block": "dgl_heta.sampling.blocks",
    "MiniBatch": "dgl_heta.sampling.blocks",
    "Relations": "dgl_heta.models",
    "RelationBlock": "dgl_heta.sampling.blocks",
    "head_width": "dgl_heta.models.rgat",
    "is_linear": "dgl_heta.models.hgnn",
    # the terminal
    "AsJson": "dgl_heta.cli.options",
    "SettingsOptions": "dgl_heta.cli.options",
    "grouped": "dgl_heta.cli.options",
    "Advance": "dgl_heta.report.console",
    "out": "dgl_heta.report.console",
    "print_json": "dgl_heta.report.console",
    "progress": "dgl_heta.report.console",
    "table": "dgl_heta.report.console",
}

__all__ = [
    "ALWAYS", "COMPILES", "MASKS", "PUBLIC", "REVERSE", "Advance", "ArrayFile", "AsJson", "Block",
    "ColumnTable", "Comm", "DistributedModel", "GroupExchange", "IdShards", "InEdges", "LinkStep",
    "Loader", "MiniBatch", "Moments", "NodeIds", "NodeShape", "NotProvedError", "Patch",
    "PatchTable", "PeerLostError", "Place", "Plugins", "RelationBlock", "RelationShape",
    "Relations", "SettingsOptions", "Shape", "StaticFeatures", "StepProof", "TextFile", "Traffic",
    "TrainingSetting", "agrees", "as_text", "changed", "check_archive", "check_file", "check_room",
    "check_source", "column_seconds", "config_name", "data_parallel", "file_sum", "gather_rows",
    "generate", "graph_names", "grouped", "head_width", "homes", "init_workers", "initial_rows",
    "is_linear", "is_part_config", "joined_labels", "kernel", "listing",
    "load_settings", "log_line", "make_request", "mapped_files", "masks_of", "nearest", "new_array",
    "new_directory", "new_rows", "node_array", "node_mask", "node_task", "open_input", "optional",
    "out", "part_tensor", "patch_all", "peak_rss_mb", "plain", "plain_column", "plugins",
    "prefetch", "print_json", "progress", "quoted", "read_dgl_graph", "read_instant",
    "read_section", "read_signed", "read_toml", "replacing", "reserve", "run_workers",
    "scratch_directory", "section_name", "share_of", "sort_of", "split_words", "state_of", "table",
    "table_features", "task_columns", "with_reverse", "worker_main", "wrapper_for_any_graph",
    "write_atomic", "write_signed",
]

if TYPE_CHECKING:
    from dgl_heta.cli.options import AsJson, SettingsOptions, grouped
    from dgl_heta.comm.collectives import Comm, PeerLostError, Traffic, init_workers
    from dgl_heta.distdgl.state import state_of, wrapper_for_any_graph
    from dgl_heta.distdgl.versions import homes
    from dgl_heta.errors import listing, nearest, quoted
    from dgl_heta.features.learnable import initial_rows
    from dgl_heta.features.row_kernels import gather_rows, new_rows
    from dgl_heta.features.static import StaticFeatures
    from dgl_heta.graph.changes import REVERSE, with_reverse
    from dgl_heta.graph.datasets.synthetic import NodeShape, RelationShape, Shape, generate
    from dgl_heta.graph.node_ids import NodeIds
    from dgl_heta.graph.readers.arrays import joined_labels, node_array, node_mask, node_task
    from dgl_heta.graph.readers.column_values import as_text, sort_of
    from dgl_heta.graph.readers.column_values import plain as plain_column
    from dgl_heta.graph.readers.columns import task_columns
    from dgl_heta.graph.readers.dgl_graph import read_dgl_graph
    from dgl_heta.graph.readers.id_shards import ArrayFile, IdShards, TextFile
    from dgl_heta.graph.readers.id_shards import mapped as mapped_files
    from dgl_heta.graph.readers.sizes import check_archive
    from dgl_heta.graph.readers.splits import masks_of
    from dgl_heta.graph.readers.splits import words as split_words
    from dgl_heta.graph.readers.table_features import table_features
    from dgl_heta.graph.readers.table_reader import Table as ColumnTable
    from dgl_heta.graph.readers.times import read_instant
    from dgl_heta.graph.readers.times import seconds as column_seconds
    from dgl_heta.graph.source import ALWAYS, MASKS, graph_names, part_tensor
    from dgl_heta.hooks.manager import Plugins, plugins
    from dgl_heta.launch.local import run_workers
    from dgl_heta.launch.worker import main as worker_main
    from dgl_heta.models import Relations
    from dgl_heta.models.hgnn import is_linear
    from dgl_heta.models.rgat import head_width
    from dgl_heta.partition.directory import is_part_config
    from dgl_heta.partition.graph_input import open_input
    from dgl_heta.partition.part_config import config_name
    from dgl_heta.partition.request import make_request
    from dgl_heta.proof.copies import NotProvedError
    from dgl_heta.raf.exchange import GroupExchange
    from dgl_heta.raf.wrapper import data_parallel
    from dgl_heta.report.console import Advance, out, print_json, progress, table
    from dgl_heta.report.metrics_log import log_line
    from dgl_heta.sampling.blocks import Block, InEdges, MiniBatch, RelationBlock
    from dgl_heta.sampling.moments import Moments
    from dgl_heta.settings import load_settings, read_section, section_name
    from dgl_heta.settings.toml import read_toml
    from dgl_heta.store.source_checks import check_source
    from dgl_heta.store.structure import changed
    from dgl_heta.system.atomic_files import new_directory, replacing, write_atomic
    from dgl_heta.system.checksums import (
        agrees,
        check_file,
        file_sum,
        read_signed,
        write_signed,
    )
    from dgl_heta.system.disk import check_room, new_array, reserve
    from dgl_heta.system.jit import COMPILES, kernel
    from dgl_heta.system.leftovers import scratch_directory
    from dgl_heta.system.memory import peak_rss_mb
    from dgl_heta.system.optional import optional
    from dgl_heta.system.patching import Patch, PatchTable, patch_all, plain
    from dgl_heta.system.prefetch import prefetch
    from dgl_heta.training.batches import Place
    from dgl_heta.training.distributed import DistributedModel
    from dgl_heta.training.loader import Loader
    from dgl_heta.training.step_proof import StepProof, TrainingSetting
    from dgl_heta.training.tasks import LinkStep
    from dgl_heta.training.tasks.task import share_of


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, _, attribute = _LAZY[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'dgl_heta.tools' has no attribute '{name}'")
