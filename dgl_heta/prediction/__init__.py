"""Inference for all nodes of a type: `dgl-heta predict`.

`layerwise` computes every layer for all nodes that the next one needs, out of core, and fits
models of :class:`dgl_heta.HGNN`; `batchwise` runs any model over batches of the nodes.
"""
