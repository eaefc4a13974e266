"""Every name of DGL and PyTorch that dgl-heta replaces while it is enabled, in one table.

Each subject has its replacements in its own module, in a tuple `PATCHES`. Each hands over to the
original unless a meta-partitioned graph or a selected provider is meant, so with nothing of
dgl-heta selected everything is plain DGL. `dgl_heta.system.patching.remove` puts the originals
back.
"""

from __future__ import annotations

from dgl_heta.comm import dgl_connections, meeting
from dgl_heta.distdgl import (
    blocks,
    collated_loader,
    edge_loader,
    embedding,
    ending,
    feature_stores,
    gradients,
    graphbolt_loader,
    graphbolt_parts,
    graphs,
    message_passing,
    node_loader,
    own_part,
    parallel,
    partitions,
    slices,
    tensors,
)
from dgl_heta.system.patching import Patch

PATCHES: tuple[Patch, ...] = (
    *partitions.PATCHES,
    *graphbolt_parts.PATCHES,
    *graphs.PATCHES,
    *tensors.PATCHES,
    *node_loader.PATCHES,
    *edge_loader.PATCHES,
    *collated_loader.PATCHES,
    *blocks.PATCHES,
    *message_passing.PATCHES,
    *slices.PATCHES,
    *embedding.PATCHES,
    *feature_stores.PATCHES,
    *graphbolt_loader.PATCHES,
    *parallel.PATCHES,
    *gradients.PATCHES,
    *own_part.PATCHES,
    *ending.PATCHES,
    *meeting.PATCHES,
    *dgl_connections.PATCHES,
)
