"""The public names of DGL's blocks: refused on blocks of a meta-partitioned graph, or not.

A block has the edges of its machine's relations. What reads edges would give a result without the
others', and nothing would say so. Every name is in one of these lists, which a test holds.
"""

from __future__ import annotations

SLICED = ("apply_edges", "edata", "in_degrees", "update_all")
"""Refused on blocks of several relations alone: a slice of a block has them."""

REFUSED = {
    **dict.fromkeys(SLICED, "several relations at once"),
    **dict.fromkeys(("send_and_recv", "pull", "push", "prop_nodes", "prop_edges"),
                    "messages over a block"),
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
        "remove_self_loop", "pin_memory_", "record_stream", "set_batch_num_edges"),
        "edges of a block"),
    "out_degrees": "out-degrees of a block",
}
"""Names that would see this machine's relations alone → its entry in the table of refusals
(:mod:`..refusals`). Refused where a group has several workers."""

SOURCES = (
    "out_degrees", "out_edges", "successors", "adj", "adjacency_matrix", "adj_external",
    "adj_tensors", "inc", "push", "prop_nodes", "prop_edges", "out_subgraph",
    "khop_out_subgraph", "line_graph", "to_networkx", "to_cugraph")
"""Names that look at edges from their sources. Refused on the graph that a relation's own module
gets, too: the in-edges of each destination are whole there, but there are destinations of all
trainers."""

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
"""Names that see nodes, names and numbers alone."""
