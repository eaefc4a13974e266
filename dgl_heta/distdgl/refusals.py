"""Everything that a script may do and a meta-partitioned graph cannot: one table.

Each entry says what is refused, where a script meets it, the message, what to do instead, and the
test that shows it. The list in docs/switching.md is made from it (`scripts/list_refusals.py`).
Public names of DGL's blocks are in :mod:`.blocks.block_names`. What is no refusal but a fault (a
damaged file, a trainer that is gone) is raised where it is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from dgl_heta.errors import HetaError, InputError


@dataclass(frozen=True)
class Refusal:
    """One thing that is refused.

    Attributes
    ----------
    what : for the list in the documentation, a noun phrase in Markdown.
    met : when a script meets it.
    message : of the error, with the facts of the case in braces, and `{remedy}`.
    remedy : what to do instead, with facts in braces, too.
    test : the test that shows it, `file::function` below tests/.
    kind : of the error: InputError before anything is computed, else HetaError.
    """

    what: str
    met: str
    message: str
    remedy: str
    test: str
    kind: type[HetaError] = HetaError

    def error(self, **facts: Any) -> HetaError:
        """Return the error, with the facts of the case."""
        return self.kind(self.message.format(remedy=self.remedy.format(**facts), **facts))


# --- losses, gradients, backward passes (autograd/, training/) ------------------------------------

AUTOGRAD: dict[str, Refusal] = {}

# --- blocks and their edges (blocks/) -------------------------------------------------------------

_LEAVES_OUT = ("{operation} on a block of a meta-partitioned graph would leave out the relations "
               "of other partitions; {remedy}")

BLOCKS: dict[str, Refusal] = {
    "edges of a block": Refusal(
        "functions that read edges of a block (`block.edges()`, `adj`, `in_edges`, …)",
        "a block is read", _LEAVES_OUT,
        "compute with edges by update_all, apply_edges and edge_softmax on the slice of a "
        "relation, block[relation], or in a relation's own module inside dgl.nn.HeteroGraphConv, "
        "which sees whole in-edges",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "messages over a block": Refusal(
        "message passing over a whole block (`pull`, `push`, `prop_nodes`, …)",
        "a block is computed on", _LEAVES_OUT,
        "merge relations by dgl.nn.HeteroGraphConv or block.multi_update_all, or call it on the "
        "slice of each relation, block[relation]",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "several relations at once": Refusal(
        "`update_all`, `apply_edges`, `in_degrees` and `edata` of a block with several relations",
        "a block is computed on", _LEAVES_OUT,
        "call it on the slice of each relation, block[relation], or name the relation (etype=)",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "out-degrees of a block": Refusal(
        "out-degrees of a block or its slice", "a block is read", _LEAVES_OUT,
        "they depend on the other trainers' seeds; use in-degrees (GraphConv: norm='right' or "
        "'none')",
        "distdgl/test_slices.py::test_calls_that_differ_between_trainers_are_named_on_all"),
    "copies of a block": Refusal(
        "copies of a block by `copy.deepcopy` or `pickle`", "a block is copied",
        "copying or pickling on a block of a meta-partitioned graph would leave out the relations "
        "of other partitions; {remedy}",
        "keep blocks in the process that samples them",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "edges from their sources": Refusal(
        "out-degrees, out-edges and adjacency matrices of the graph that a relation's own module "
        "gets", "a relation's module runs",
        "{operation} of the graph of {relation} cannot be used on a meta-partitioned graph: a "
        "relation's module runs for the seeds of all trainers, so what is counted or reduced by "
        "source would depend on theirs; {remedy}",
        "use in-degrees and what is reduced by destination (GraphConv: norm='right' or 'none')",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "edge_softmax by sources": Refusal(
        "`edge_softmax` with `norm_by='src'`", "it is computed",
        "edge_softmax with norm_by='src' cannot be used on a meta-partitioned graph: edges are "
        "those of the seeds of all trainers, so it would depend on theirs; {remedy}",
        "use norm_by='dst'", "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a seed's data in a module": Refusal(
        "data of destinations, read by a relation's module at the last layer",
        "the module reads it",
        "'{column}' of destinations of {relation} cannot be read by its module at the last layer "
        "of a meta-partitioned graph, because the script has put it on this trainer's own seeds "
        "and the module runs for those of all trainers; {remedy}",
        "give it to the module as input rows of HeteroGraphConv",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a destination's data in a module": Refusal(
        "data of destinations, read by a relation's module at layer 1 with `partition.shared`",
        "the module reads it",
        "'{column}' of destinations of {relation} cannot be read by its module at layer 1 of a "
        "meta-partitioned graph, because the script has put it on this trainer's own rows and the "
        "module runs for some of all trainers; {remedy}",
        "give it to the module as input rows of HeteroGraphConv, or set partition.shared = rows",
        "distdgl/test_refused.py::test_data_of_destinations_that_other_trainers_have"),
    "edge ids that are not stored": Refusal(
        "edge ids of a partition that has none", "data is read by edge ids",
        "edge ids (dgl.EID) of {relation} are not stored by this meta-partitioned graph; {remedy}",
        "make it by dgl.distributed.partition_graph, or leave edge features out",
        "distdgl/test_refused.py::test_edge_ids_that_are_written_or_not_stored"),
    "edge ids as numbers": Refusal(
        "edge ids used for anything but reading data of these edges", "they are used",
        "edge ids (dgl.EID) of {relation} are good for {remedy}: on a meta-partitioned graph a "
        "block has this machine's edges, for the seeds of all trainers",
        "reading data of these edges alone, g.edges[relation].data['…'][ids]",
        "distdgl/test_edge_data.py::test_what_is_not_computed_edge_by_edge_is_refused"),
    "writing edge ids": Refusal(
        "edge ids that a script writes", "they are written",
        "the ids of edges of {relation} cannot be written", "leave them as they are",
        "distdgl/test_refused.py::test_edge_ids_that_are_written_or_not_stored"),
    "other data by the ids of edges": Refusal(
        "data of nodes or other edges, read by edge ids", "it is read",
        "a DistTensor of {rows} rows is read by the ids of edges of {relation}, of which there are "
        "{edges}; {remedy}",
        "read data of these edges, g.edges[relation].data[…]",
        "distdgl/test_edge_data.py::test_what_is_not_computed_edge_by_edge_is_refused"),
    "rows of edges together": Refusal(
        "sums, softmax and indices over rows of several edges", "they are computed",
        "'{function}' of rows of edges of {relation}: on a meta-partitioned graph a block has this "
        "machine's edges, for the seeds of all trainers, so only what is computed edge by edge is "
        "as in plain DistDGL; {remedy}",
        "compute it in a relation's own module or in a message function, which see whole in-edges",
        "distdgl/test_edge_rows.py::test_what_looks_at_several_rows_is_refused"),
    "rows that are not of these edges": Refusal(
        "rows for edges that are not these edges' own", "they are put on edges or computed with",
        "{what} the edges of {relation} must be rows of these edges: on a meta-partitioned graph "
        "{remedy}",
        "what their slice has given (apply_edges, edge_softmax), what was read by their ids, "
        "g.edges[relation].data['…'][block.edges[relation].data[dgl.EID]], and what was computed "
        "of it row by row",
        "distdgl/test_edge_data.py::test_what_is_not_computed_edge_by_edge_is_refused"),
}

# --- HeteroGraphConv, multi_update_all, slices (modules/) -----------------------------------------

MODULES: dict[str, Refusal] = {
    "a slice in place of a block": Refusal(
        "HeteroGraphConv and `multi_update_all` on a slice of a block", "they are called",
        "HeteroGraphConv and multi_update_all take no slice of a block of a meta-partitioned "
        "graph: {remedy}",
        "pass the whole block to them, or call a relation's own convolution on its slice",
        "distdgl/test_refused.py::test_a_slice_in_place_of_a_block"),
    "a merge in a backward pass": Refusal(
        "`torch.utils.checkpoint` of a whole layer", "the backward pass runs",
        "a block of a meta-partitioned graph cannot be aggregated again inside a backward pass: "
        "{remedy}",
        "use torch.utils.checkpoint for what is inside a relation's module, or between layers, but "
        "not for a HeteroGraphConv",
        "distdgl/test_children.py::test_a_checkpointed_layer_is_refused"),
    "an unknown aggregation": Refusal(
        "aggregations that DGL does not have either", "relations are merged",
        "aggregation {aggregation!r} is unknown; {remedy}",
        "use 'sum', 'mean', 'max', 'min', 'stack' or a callable",
        "distdgl/test_refused.py::test_an_unknown_aggregation"),
    "GraphConv's norm by out-degrees": Refusal(
        "GraphConv with `norm='both'` or `'left'`", "a layer runs",
        "GraphConv with norm='{norm}' divides by out-degrees inside a batch, which depend on the "
        "other trainers' seeds on a meta-partitioned graph; {remedy}",
        "use norm='right' or 'none'", "distdgl/test_children.py::test_what_is_refused_is_named",
        InputError),
    "rows of edges for DGL's convolutions": Refusal(
        "rows of edges for a module of DGL's that takes none", "a layer runs",
        "{conv} is given rows of the edges of {etype}, whose module {module} takes none; {remedy}",
        "leave them out",
        "distdgl/test_refused.py::test_rows_of_edges_for_dgls_convolutions", InputError),
    "data of edges in some batches": Refusal(
        "data of edges for modules in some batches of an epoch", "a layer runs",
        "data of edges is given to HeteroGraphConv's modules inside an epoch; {remedy}",
        "give it with all batches of an epoch, or with none",
        "distdgl/test_refused.py::test_what_changes_inside_an_epoch"),
    "a node type left out of some batches": Refusal(
        "a node type left out of the inputs of some batches", "a layer runs",
        "the rows of '{ntype}' are left out of HeteroGraphConv's inputs inside an epoch; {remedy}",
        "leave a node type out of all batches of an epoch, or of none",
        "distdgl/test_refused.py::test_what_changes_inside_an_epoch"),
    "a hook registered inside an epoch": Refusal(
        "a hook on a GraphConv, registered inside an epoch", "a layer runs",
        "a hook was registered on a GraphConv inside an epoch; {remedy}",
        "register it on all trainers before the epoch's first batch",
        "distdgl/test_refused.py::test_what_changes_inside_an_epoch"),
    "a module that reads edge ids": Refusal(
        "`dgl.EID` of the graph that a relation's own module gets", "the module runs",
        "the module of {relation} reads edge ids (dgl.EID) of its graph, which on a "
        "meta-partitioned graph has none; {remedy}",
        "read data of edges by the block's, block.edges[relation].data[dgl.EID], and give the "
        "module the rows (mod_kwargs)",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a module that returns no tensor": Refusal(
        "a relation's module that returns a tuple or a dictionary", "the module runs",
        "the module of {relation} returned {kind}; on a meta-partitioned graph {remedy}",
        "it must return one tensor, with a row for each destination",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a module that returns other rows": Refusal(
        "a relation's module that returns other rows than its destinations'", "the module runs",
        "the module of {relation} returned a tensor of shape {shape} for {rows} destinations; on a "
        "meta-partitioned graph {remedy}",
        "it must return a row for each",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a buffer that several relations change": Refusal(
        "a module that several relations share, whose buffers change with each call",
        "a layer runs",
        "buffer '{buffer}' of {module}, in a module that several relations have in common, changes "
        "with every call, and its calls are in another order on a meta-partitioned graph; {remedy}",
        "give each relation a module of its own (spectral_norm: or norm the common weight once, "
        "outside of HeteroGraphConv)",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "states that are no tensors": Refusal(
        "states that are not built of tensors, with `partition.shared`", "a layer runs",
        "the states of '{ntype}' that HeteroGraphConv is given are not all tensors; {remedy}",
        "give a tensor, or a tuple, list or dictionary of tensors",
        "distdgl/test_refused.py::test_states_that_trainers_cannot_send"),
    "states left out by some": Refusal(
        "states left out in some calls, with `partition.shared`", "a layer runs",
        "the states of '{ntype}' are left out of HeteroGraphConv's inputs in some calls and "
        "trainers and given in others, where one partition aggregates for the others; {remedy}",
        "give the same in all, or set partition.shared = rows",
        "distdgl/test_refused.py::test_states_that_trainers_cannot_send"),
    "states of other tensors": Refusal(
        "states built of other tensors in some calls, with `partition.shared`", "a layer runs",
        "the states of '{ntype}' are built of other tensors in some calls and trainers than in "
        "others, where one partition aggregates for the others; {remedy}",
        "give the same in all, or set partition.shared = rows",
        "distdgl/test_refused.py::test_states_that_trainers_cannot_send"),
    "own functions in a large group": Refusal(
        "own functions, maxima and minima in `multi_update_all` with many trainers",
        "`multi_update_all` is called",
        "a group has {trainers} trainers; {remedy}",
        "a user-defined reduce function, or a maximum or minimum, in multi_update_all works with "
        "{most}", "distdgl/test_refused.py::test_own_functions_in_a_large_group"),
    "own reduce and apply functions for rows without edges": Refusal(
        "own reduce and apply functions in `multi_update_all` for rows without edges",
        "`multi_update_all` is called",
        "multi_update_all with a reduce function and an apply function of the script's own: some "
        "rows have no edge here, so the apply function cannot run for them; {remedy}",
        "apply it to the merged rows instead",
        "distdgl/test_refused.py::test_own_reduce_and_apply_functions_for_rows_without_edges"),
    "a row of several batches with other relations": Refusal(
        "relations that are in some trainers' batches and absent in others', for one row, with "
        "functions that tell the difference", "`multi_update_all` is called",
        "multi_update_all over {relation} at layer {layer}: a row is in the batches of several "
        "trainers, of which some have edges of this relation and some have none, so plain DGL "
        "would give it several results; {remedy}",
        "use fn.sum or fn.mean to reduce, or 'sum' as the cross reducer, and the same relations in "
        "every batch",
        "distdgl/test_refused.py::test_functions_of_multi_update_all_that_tell_batches_apart"),
    "a relation left out by who has its edges": Refusal(
        "relations that some trainers leave out of `multi_update_all`",
        "`multi_update_all` is called",
        "trainers call multi_update_all with different relations: {relation} is not in the "
        "dictionary of trainer {trainer}, whose machine has its edges; {remedy}",
        "give all trainers the same relations",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "other functions on some trainers": Refusal(
        "other functions on some trainers", "`multi_update_all` is called",
        "trainers call multi_update_all with different functions for {relation}; {remedy}",
        "give all trainers the same",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "other relations on some trainers": Refusal(
        "other relations on some trainers, unless they are summed", "`multi_update_all` is called",
        "trainers call multi_update_all with different relations, which plain sums alone can do: "
        "the cross reducer is {reducer!r}; {remedy}",
        "give all trainers the same relations, also those without edges (block.num_edges, and "
        "which types have rows, are this machine's)",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "relations in other orders": Refusal(
        "relations in other orders on some trainers, for a callable cross reducer",
        "`multi_update_all` is called",
        "trainers call multi_update_all with their relations in different orders, which a callable "
        "cross reducer may depend on; {remedy}",
        "give all trainers the same",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "other arguments on some trainers": Refusal(
        "another cross reducer, or data of other shapes or dtypes, on some trainers",
        "`multi_update_all` is called",
        "trainers call multi_update_all with different {what}: {value} on trainer {trainer}, "
        "{other_value} on trainer {other}; {remedy}",
        "give all trainers the same",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "slices called differently": Refusal(
        "calls on slices of blocks that differ between trainers", "a slice is computed on",
        "trainers call slices of blocks differently: {what}; {remedy}",
        "let every trainer call the slices of all relations in the same order, whatever its "
        "machine has of them (whether block.num_edges(relation) is 0 is the same on all trainers; "
        "numbers of nodes are not)",
        "distdgl/test_slices.py::test_calls_that_differ_between_trainers_are_named_on_all"),
}

# --- features, DistEmbedding, sparse optimizers (rows/) -------------------------------------------

ROWS: dict[str, Refusal] = {}

# --- data loaders and samplers (loading/) ---------------------------------------------------------

LOADING: dict[str, Refusal] = {
    "sampler with replace": Refusal(
        "NeighborSampler with `replace=True`", "a data loader is made",
        "{sampler} with replace={value!r} cannot be used on a meta-partitioned graph; {remedy}",
        "leave it out", "distdgl/test_distdgl_messages.py::test_samplers", InputError),
}

# --- DistGraph, partitions, queries, sessions (graph/, session.py) --------------------------------

GRAPH: dict[str, Refusal] = {}

TABLE: dict[str, Refusal] = {**LOADING, **BLOCKS, **MODULES, **ROWS, **AUTOGRAD, **GRAPH}


def refuse(name: str, **facts: Any) -> NoReturn:
    """Raise the error of an entry of the table."""
    raise TABLE[name].error(**facts)
