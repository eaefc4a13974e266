"""Blocks of a batch for a script, on which messages are passed and relations are merged.

HeteroGraphConv and multi_update_all alone reach what is aggregated for the other trainers' seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dgl
import torch
from dgl.base import ALL
from dgl.frame import Frame
from torch import Tensor

from dgl_heta.distdgl.blocks.block_index import BlockIndex, kinds
from dgl_heta.distdgl.blocks.dgl_block import PlainBlock
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.modules import hetero_graph_conv, multi_update, slices
from dgl_heta.distdgl.modules.registered_convs import Called
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.versions import homes
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.system.patching import patch_all


class MergingBlock(RafBlock):
    """A block of a meta-partitioned graph with DGL's message passing, over the group."""

    def heta_merge(self, conv: Any, inputs: Any, mod_args: Any, mod_kwargs: Any, called: Called
                   ) -> dict[str, Tensor]:
        """Return what a registered class in the place of HeteroGraphConv gives for the block."""
        return hetero_graph_conv.forward(conv, self, inputs, mod_args, mod_kwargs, called)

    def update_all(self, message_func: Any, reduce_func: Any, apply_node_func: Any = None,
                   etype: Any = None) -> None:
        if self.partial:  # a slice, or a relation that is named
            slices.update_all(self._slice("update_all", etype), message_func, reduce_func,
                              apply_node_func)
        else:
            super().update_all(message_func, reduce_func, apply_node_func, etype)

    def apply_edges(self, func: Any, edges: Any = ALL, etype: Any = None) -> None:
        if self.partial:
            slices.apply_edges(self._slice("apply_edges", etype), func, edges)
        else:
            super().apply_edges(func, edges, etype)

    def in_degrees(self, v: Any = ALL, etype: Any = None) -> Any:
        if self.partial:
            return slices.in_degrees(self._slice("in_degrees", etype), v)
        return super().in_degrees(v, etype)

    def multi_update_all(self, etype_dict: Any, cross_reducer: Any,
                         apply_node_func: Any = None) -> None:
        if self.partial:
            multi_update.multi_update_all(self, etype_dict, cross_reducer, apply_node_func)
        else:
            super().multi_update_all(etype_dict, cross_reducer, apply_node_func)


def make_blocks(session: Session, batch: MiniBatch,
                levels: Sequence[Mapping[str, Tensor]] = (), planned: bool = True
                ) -> list[RafBlock | PlainBlock]:
    """Return the blocks of a batch as a script sees them, with node ids (dgl.NID) on both sides.

    In reference mode they are DGL's own.

    Parameters
    ----------
    levels : ids of each block's sources and, last, of the last one's destinations, by node type.
    planned : whether each machine has the relations that the plan gives it.
    """
    schema = session.store.schema
    types = tuple(schema.node_types)  # as in DistDGL, on both sides of every block
    every = kinds(types, types, tuple(schema.relations))
    etypes = [relation.etype for relation in every.relations]
    ids = {t: torch.from_numpy(nodes) for t, nodes in batch.input_nodes.items()}
    blocks: list[RafBlock | PlainBlock] = []
    for number, block in enumerate(batch.blocks):
        layer = Layer(session, block, ids, batch.blocks, planned)
        index = BlockIndex(layer, every)
        # Rows of every block lead those of the input, so its ids serve all, but with `levels`.
        sources, destinations = levels[number:number + 2] or (ids, ids)
        frames = [Frame({dgl.NID: nodes.get(t, _NO_IDS)[:index.num_nodes(end * len(types) + i)]})
                  for end, nodes in enumerate((sources, destinations))
                  for i, t in enumerate(types)]
        ntypes: Any = ([*types], [*types])
        public: RafBlock | PlainBlock
        if session.reference:
            public = PlainBlock(index.real(), ntypes, etypes, frames)
        else:
            public = MergingBlock(index, ntypes, etypes, frames)
        public.layer = layer
        blocks.append(public)
    return blocks


_NO_IDS = torch.empty(0, dtype=torch.int64)


def _hetero_forward(original: Any) -> Any:
    def forward(self: Any, g: Any, inputs: Any, mod_args: Any = None,
                mod_kwargs: Any = None) -> Any:
        if not isinstance(g, RafBlock):
            return original(self, g, inputs, mod_args, mod_kwargs)
        return hetero_graph_conv.forward(self, g, inputs, mod_args, mod_kwargs)
    return forward


PATCHES = (
    *patch_all(homes("HeteroGraphConv", "forward"), _hetero_forward,
               "merge relations over the group"),
)
