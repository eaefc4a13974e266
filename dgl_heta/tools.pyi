"""The names of dgl_heta.tools, and where each is; `lazy_names` loads them."""

from dgl_heta.cli.options import (AsJson as AsJson, SettingsOptions as SettingsOptions,
    grouped as grouped)
from dgl_heta.comm.collectives import (Comm as Comm, PeerLostError as PeerLostError,
    Traffic as Traffic, init_workers as init_workers)
from dgl_heta.distdgl.state import (state_of as state_of,
    wrapper_for_any_graph as wrapper_for_any_graph)
from dgl_heta.distdgl.versions import homes as homes
from dgl_heta.errors import listing as listing, nearest as nearest, quoted as quoted
from dgl_heta.features.learnable import initial_rows as initial_rows
from dgl_heta.features.row_kernels import gather_rows as gather_rows, new_rows as new_rows
from dgl_heta.features.static import StaticFeatures as StaticFeatures
from dgl_heta.graph.changes import REVERSE as REVERSE, with_reverse as with_reverse
from dgl_heta.graph.datasets.synthetic import (NodeShape as NodeShape,
    RelationShape as RelationShape, Shape as Shape, generate as generate)
from dgl_heta.graph.node_ids import NodeIds as NodeIds
from dgl_heta.graph.readers.arrays import (check_finite as check_finite,
    joined_labels as joined_labels, node_array as node_array, node_mask as node_mask,
    node_task as node_task)
from dgl_heta.graph.readers.column_values import (as_text as as_text, plain_column as plain_column,
    sort_of as sort_of)
from dgl_heta.graph.readers.columns import task_columns as task_columns
from dgl_heta.graph.readers.dgl_graph import read_dgl_graph as read_dgl_graph
from dgl_heta.graph.readers.id_shards import (ArrayFile as ArrayFile, IdShards as IdShards,
    TextFile as TextFile, mapped_files as mapped_files)
from dgl_heta.graph.readers.sizes import check_archive as check_archive
from dgl_heta.graph.readers.splits import masks_of as masks_of, split_words as split_words
from dgl_heta.graph.readers.table_features import table_features as table_features
from dgl_heta.graph.readers.table_reader import ColumnTable as ColumnTable
from dgl_heta.graph.readers.times import (column_seconds as column_seconds,
    read_instant as read_instant)
from dgl_heta.graph.source import (ALWAYS as ALWAYS, MASKS as MASKS, graph_names as graph_names,
    part_tensor as part_tensor)
from dgl_heta.hooks.manager import Plugins as Plugins, plugins as plugins
from dgl_heta.launch.local import run_workers as run_workers
from dgl_heta.launch.worker import worker_main as worker_main
from dgl_heta.models import Relations as Relations
from dgl_heta.models.hgnn import is_linear as is_linear
from dgl_heta.models.rgat import head_width as head_width
from dgl_heta.partition.directory import is_part_config as is_part_config
from dgl_heta.partition.graph_input import open_input as open_input
from dgl_heta.partition.part_config import config_name as config_name
from dgl_heta.partition.request import make_request as make_request
from dgl_heta.proof.copies import NotProvedError as NotProvedError
from dgl_heta.raf.exchange import GroupExchange as GroupExchange
from dgl_heta.raf.wrapper import data_parallel as data_parallel
from dgl_heta.report.console import (Advance as Advance, out as out, print_json as print_json,
    progress as progress, table as table)
from dgl_heta.report.metrics_log import log_line as log_line
from dgl_heta.sampling.blocks import (Block as Block, InEdges as InEdges, MiniBatch as MiniBatch,
    RelationBlock as RelationBlock)
from dgl_heta.sampling.moments import Moments as Moments
from dgl_heta.settings import (load_settings as load_settings, read_section as read_section,
    section_name as section_name)
from dgl_heta.settings.toml import read_toml as read_toml
from dgl_heta.store.source_checks import check_source as check_source
from dgl_heta.store.structure import changed as changed
from dgl_heta.system.atomic_files import (new_directory as new_directory, replacing as replacing,
    write_atomic as write_atomic)
from dgl_heta.system.checksums import (agrees as agrees, check_file as check_file,
    file_sum as file_sum, read_signed as read_signed, write_signed as write_signed)
from dgl_heta.system.disk import (check_room as check_room, new_array as new_array,
    reserve as reserve)
from dgl_heta.system.jit import COMPILES as COMPILES, kernel as kernel
from dgl_heta.system.leftovers import scratch_directory as scratch_directory
from dgl_heta.system.memory import peak_rss_mb as peak_rss_mb
from dgl_heta.system.optional import optional as optional
from dgl_heta.system.patching import (Patch as Patch, PatchTable as PatchTable,
    patch_all as patch_all, plain as plain)
from dgl_heta.system.prefetch import prefetch as prefetch
from dgl_heta.training.batches import Place as Place
from dgl_heta.training.distributed import DistributedModel as DistributedModel
from dgl_heta.training.loader import Loader as Loader
from dgl_heta.training.step_proof import StepProof as StepProof, TrainingSetting as TrainingSetting
from dgl_heta.training.tasks import LinkStep as LinkStep
from dgl_heta.training.tasks.task import share_of as share_of

PUBLIC: tuple[str, ...]
