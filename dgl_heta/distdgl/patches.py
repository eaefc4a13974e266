"""Every name of DGL and PyTorch that dgl-heta replaces while it is enabled, in one table.

Each subject has its replacements in its own module, in a tuple `PATCHES`. Each hands over to the
original unless a meta-partitioned graph or a selected provider is meant, so with nothing of
dgl-heta selected everything is plain DGL. `dgl_heta.system.patching.remove` puts the originals
back.
"""

from __future__ import annotations

from dgl_heta.comm import dgl_connections, meeting
from dgl_heta.distdgl.blocks import message_passing
from dgl_heta.distdgl.graph import dist_graph, graphbolt_parts, loaded_parts, partitions
from dgl_heta.distdgl.loading import collated_loader, dgl_loaders
from dgl_heta.distdgl.modules import script_blocks, slices
from dgl_heta.distdgl.rows import embedding, node_data
from dgl_heta.distdgl.training import autograd_calls, ending, parallel
from dgl_heta.system.patching import Patch

PATCHES: tuple[Patch, ...] = (
    *partitions.PATCHES,
    *loaded_parts.PATCHES,
    *graphbolt_parts.PATCHES,
    *dist_graph.PATCHES,
    *node_data.PATCHES,
    *dgl_loaders.PATCHES,
    *collated_loader.PATCHES,
    *script_blocks.PATCHES,
    *message_passing.PATCHES,
    *slices.PATCHES,
    *embedding.PATCHES,
    *parallel.PATCHES,
    *autograd_calls.PATCHES,
    *ending.PATCHES,
    *meeting.PATCHES,
    *dgl_connections.PATCHES,
)
