"""What is refused on blocks of a meta-partitioned graph, by name, and what is not.

A block has the edges of its machine's relations. What reads edges would give a result without the
others', and nothing would say so.
"""

from __future__ import annotations

from typing import Any

from dgl_heta.errors import HetaError

MERGE = ("merge relations by dgl.nn.HeteroGraphConv or block.multi_update_all, or call it on the "
         "slice of each relation, block[relation]")
EDGES = ("compute with edges by update_all, apply_edges and edge_softmax on the slice of a "
         "relation, block[relation], or in a relation's own module inside dgl.nn.HeteroGraphConv, "
         "which sees whole in-edges")
SLICE = "call it on the slice of each relation, block[relation], or name the relation (etype=)"
SLICED = ("apply_edges", "edata", "in_degrees", "update_all")
"""Public names of DGLBlock that are refused on blocks of several relations alone."""
OUT_DEGREES = ("they depend on the other trainers' seeds; use in-degrees (GraphConv: norm='right' "
               "or 'none')")
REFUSED = {
    **dict.fromkeys(SLICED, SLICE),
    **dict.fromkeys(("send_and_recv", "pull", "push", "prop_nodes", "prop_edges"), MERGE),
    **dict.fromkeys((
        "adj", "adj_external", "adj_tensors", "adjacency_matrix", "all_edges",
        "batch_num_edges", "edge_attr_schemes", "edge_ids", "edge_subgraph",
        "edge_type_subgraph", "edges", "filter_edges", "find_edges", "get_edge_storage",
        "global_uniform_negative_sampling", "has_edges_between", "in_edges", "in_subgraph", "inc",
        "incidence_matrix", "is_multigraph", "khop_in_subgraph", "khop_out_subgraph",
        "line_graph", "node_type_subgraph", "out_edges", "out_subgraph", "predecessors",
        "reorder_graph", "reverse", "sample_etype_neighbors", "sample_labors", "sample_neighbors",
        "sample_neighbors_biased", "sample_neighbors_fused", "select_topk", "set_e_initializer",
        "shared_memory", "subgraph", "successors", "to_cugraph", "to_networkx", "to_simple",
        "add_edges", "add_nodes", "add_self_loop", "remove_edges", "remove_nodes",
        "remove_self_loop", "pin_memory_", "record_stream", "set_batch_num_edges"), EDGES),
    "out_degrees": OUT_DEGREES,
}
"""Public names of DGLBlock that would see this machine's relations alone, and what to use instead.
They are refused where a group has several workers."""

SOURCES = (
    "out_degrees", "out_edges", "successors", "adj", "adjacency_matrix", "adj_external",
    "adj_tensors", "inc", "push", "prop_nodes", "prop_edges", "out_subgraph",
    "khop_out_subgraph", "line_graph", "to_networkx", "to_cugraph")
"""Public names of DGLBlock that look at edges from their sources. They are refused on the graph
that a relation's own module gets: the in-edges of each destination are whole there, but there are
destinations of all trainers."""

ALLOWED = frozenset((
    "apply_nodes", "astype", "batch_num_nodes", "batch_size", "canonical_etypes", "clone", "cpu",
    "create_formats_", "device", "dstdata", "dstnodes", "dsttypes", "etypes", "filter_nodes",
    "formats", "get_etype_id", "get_node_storage", "get_ntype_id", "get_ntype_id_from_dst",
    "get_ntype_id_from_src", "has_nodes", "idtype", "int", "is_block", "is_homogeneous",
    "is_pinned", "is_unibipartite", "local_scope", "local_var", "long", "materialize_data",
    "metagraph", "multi_update_all", "ndata", "node_attr_schemes", "nodes", "ntypes",
    "num_dst_nodes", "num_edges", "num_nodes", "num_src_nodes", "number_of_dst_nodes",
    "number_of_edges", "number_of_nodes", "number_of_src_nodes", "set_batch_num_nodes",
    "set_n_initializer", "srcdata", "srcnodes", "srctypes", "to", "to_canonical_etype",
    "unpin_memory_"))
"""Public names of DGLBlock that see nodes, names and numbers."""


def refuse(operation: str, instead: str = MERGE) -> None:
    """
    Raises
    ------
    HetaError
        Always: the operation would see this machine's relations alone.
    """
    raise HetaError(f"{operation} on a block of a meta-partitioned graph would leave out the "
                    f"relations of other partitions; {instead}")


def refuse_partial(index: Any, operation: str) -> None:
    """Refuse an operation on the graph index of a block without its other machines' relations."""
    if getattr(index, "partial", False):
        refuse(operation, EDGES)
