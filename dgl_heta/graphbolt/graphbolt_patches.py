"""Every name of GraphBolt that dgl-heta replaces while it is enabled."""

from __future__ import annotations

from dgl_heta.graphbolt import feature_stores, raf_dataloader
from dgl_heta.system.patching import Patch

PATCHES: tuple[Patch, ...] = (*feature_stores.PATCHES, *raf_dataloader.PATCHES)
