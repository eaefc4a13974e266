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

_AVERAGED = "work on gradients after backward(), when they are averaged"
_FOR_ITSELF = ("set train.wrapper = ddp, by which every trainer computes all relations for its own "
               "seeds, or sample by a class of the script's own")

AUTOGRAD: dict[str, Refusal] = {
    "late DistEmbedding": Refusal(
        "a DistEmbedding that is made after a batch was sampled, and read for that batch",
        "rows of the DistEmbedding are read",
        "a DistEmbedding of '{ntype}' was made after the batch that its rows are read for was "
        "sampled; {remedy}", "make it before the data loader is iterated",
        "distdgl/test_handed.py::test_ids_from_before_there_was_an_embedding_are_refused"),
    "id of a batch twice": Refusal(
        "reading rows of a DistEmbedding with the same id of a batch twice",
        "rows of the DistEmbedding are read",
        "rows of the DistEmbedding of '{ntype}' are read with an id of a batch twice: on a "
        "meta-partitioned graph its input nodes are those of all trainers; {remedy}",
        "read each row once (torch.unique), and rows for this trainer alone by ids that it has "
        "drawn itself",
        "distdgl/test_handed.py::test_an_id_of_a_batch_twice_is_refused_but_of_own_seeds"),
    "ids as numbers": Refusal(
        "reading rows of a DistEmbedding with some of a batch's ids, after `numpy()` or `tolist()`",
        "rows of the DistEmbedding are read",
        "rows of the DistEmbedding of '{ntype}' are read by numbers, some of those that were taken "
        "out of a batch's ids (numpy(), tolist()), so it cannot be told which trainers read them "
        "in DistDGL; {remedy}",
        "read them by the tensors of the data loader (the input nodes, or a block's dgl.NID) and "
        "selections of them; where the script draws such ids itself, let it take none out as "
        "numbers", "distdgl/test_handed.py::"
        "test_ids_that_were_taken_out_as_numbers_are_known_again_or_refused"),
    "computed ids": Refusal(
        "reading rows of a DistEmbedding by ids that are computed from a batch's "
        "(`first_author[ids]`, `ids + 1`)",
        "rows of the DistEmbedding are read, in a step that the proof looks at",
        "rows of the DistEmbedding of '{ntype}' are read by ids that were computed from those of a "
        "batch, which has nodes of all trainers, so it cannot be told which of them read each row "
        "in DistDGL; {remedy}",
        "read them by the tensors of the data loader and selections of them (an index, sort, "
        "unique, cat), or by what is computed from own seeds; else set train.wrapper = ddp, by "
        "which every trainer reads for its own seeds",
        "distdgl/test_scope.py::test_rows_of_a_dist_embedding_and_states_in_a_dist_tensor"),
    "loss": Refusal(
        "a loss that depends on rows or counts of other trainers' seeds and goes through no merge "
        "of relations", "`backward()` is called",
        "{text}, beyond this trainer's own seeds and past all merges of relations. With RAF that "
        "is of what this machine reads for the seeds of all trainers, so gradients would not be "
        "those of plain DGL. {remedy}",
        "Use rows of own seeds, which come first (rows[:n]), numbers of own seeds, or whole "
        "parameters (weight_decay); see docs/switching.md, 'Whose rows and numbers'",
        "distdgl/test_scope.py::test_a_loss_of_rows_or_numbers_of_the_group_is_refused"),
    "incomplete states": Refusal(
        "writing states of other trainers' seeds, which are incomplete on this machine, to a "
        "tensor with a row for each node",
        "the tensor is written, in a step that the proof looks at",
        "{what} are written to a tensor with a row for each node, and some of them are not "
        "complete here: of other trainers' seeds those that no edge of this machine reads; "
        "{remedy}",
        "set train.complete_states = true, or write the rows of own seeds, which come first "
        "(rows[:n])", "distdgl/test_scope.py::test_incomplete_states_are_not_kept"),
    "hook of a parameter": Refusal(
        "hooks on gradients of parameters", "the wrapped module is called",
        "parameter {name} has a hook on its gradient, which would see this machine's part of it "
        "alone; {remedy}", _AVERAGED,
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "backward hook of a module": Refusal(
        "backward hooks of modules", "the wrapped module is called",
        "module {name} has a backward hook, which would see this machine's part of a gradient "
        "alone; {remedy}", _AVERAGED,
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "a merge that reads another of its layer": Refusal(
        "a merge of the first layer that reads what another one on the same block gave",
        "the second one runs",
        "a merge of relations reads what another merge on the same block gave (a sum to divide by, "
        "a gate); rows of other trainers' seeds are not complete there; {remedy}",
        "set train.complete_states = true", "distdgl/test_programs.py::"
        "test_merges_that_read_others_and_looks_at_gradients_outside_of_modules_are_refused"),
    "gradient of an input": Refusal(
        "gradients of inputs below the first layer (perturbed inputs, saliency)",
        "the first layer runs",
        "a tensor of shape {shape} below the first layer requires a gradient and is no "
        "nn.Parameter: a node has one row of inputs for the seeds of all trainers, so its gradient "
        "would be of all their losses, and what is made of it would reach their results. {remedy}",
        "Weights are to be nn.Parameters of the module that DistributedDataParallel wraps; for "
        f"gradients of inputs (perturbed inputs, saliency) {_FOR_ITSELF}",
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "parameter that is not wrapped": Refusal(
        "parameters below the first layer that are not in DistributedDataParallel, in a GraphBolt "
        "script", "the first layer runs",
        "a parameter of shape {shape} below the first layer is not in DistributedDataParallel, so "
        "its gradient would be of this part's relations alone; {remedy}",
        "wrap learnable embeddings with the model, or on their own",
        "distdgl/test_partial_gradients.py::test_parameters_below_are_to_be_wrapped"),
    "gradient below a merge": Refusal(
        "`torch.autograd.grad` with respect to a tensor below a merge of relations that is no "
        "parameter", "`torch.autograd.grad` is called",
        "torch.autograd.grad with respect to a tensor of shape {shape} below a merge of relations, "
        "which is no nn.Parameter, would give this machine's part of the gradient, for the seeds "
        "of all trainers; {remedy}", _FOR_ITSELF,
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "second derivatives": Refusal(
        "second derivatives through a merge of relations (`create_graph`, `is_grads_batched`)",
        "`torch.autograd.grad` is called",
        "torch.autograd.grad of parameters below a merge of relations cannot be taken with "
        "create_graph or is_grads_batched on a meta-partitioned graph{remedy}", "",
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "partial gradient": Refusal(
        "a gradient below a merge of relations, used before it is averaged (its norm, clipping, a "
        "step of an optimizer)", "the gradient is used",
        "the gradient of a parameter (shape {shape}) is {how} before it is averaged: it is this "
        "machine's part, for the seeds of all trainers, where plain DGL has that of the own seeds. "
        "{remedy}",
        "Let DistributedDataParallel average it (with the parameter in the module that is wrapped, "
        "outside of no_sync), or sum it over the trainers by torch.distributed.all_reduce before "
        "anything but sums and scaling",
        "distdgl/test_scope.py::test_a_gradient_is_summed_over_the_trainers_before_it_is_used"),
    "gradients of unknown parameters": Refusal(
        "gradients that a script averages by itself, of parameters that are in no module of those "
        "that all trainers make alike (in lists, in modules by `copy.deepcopy`)",
        "a backward pass ends",
        "trainers have gradients of different parameters, as their machines have different "
        "relations, and cannot tell each other of which: these came into no torch.nn.Module after "
        "dgl_heta.enable, or trainers have made different modules; {remedy}",
        "wrap the module in DistributedDataParallel, whose no_sync leaves averages to the script",
        "distdgl/test_scope.py::test_parameters_in_no_module_cannot_be_averaged_by_a_script"),
    "forward pass let go": Refusal(
        "losses that depend on other forward passes on some trainers, whose batches this trainer "
        "has let go", "`backward()` is called",
        "another trainer's loss depends on a forward pass that this trainer's does not depend on, "
        "and has let go; {remedy}",
        "let the losses of all trainers depend on the same forward passes",
        "distdgl/test_partial_gradients.py::test_forward_passes_that_were_let_go"),
}

# --- blocks and their edges (blocks/) -------------------------------------------------------------

_LEAVES_OUT = ("{operation} on a block of a meta-partitioned graph would leave out the relations "
               "of other partitions; {remedy}")

BLOCKS: dict[str, Refusal] = {
    "edges of a block": Refusal(
        "functions that read edges of a block (`block.edges()`, `adj`, `in_edges`, subgraphs, "
        "`block_to_graph`, …)", "the function is called", _LEAVES_OUT,
        "compute with edges by update_all, apply_edges and edge_softmax on the slice of a "
        "relation, block[relation], or in a relation's own module inside dgl.nn.HeteroGraphConv, "
        "which sees whole in-edges",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "messages over a block": Refusal(
        "message passing over a whole block (`pull`, `push`, `prop_nodes`, …)",
        "the function is called", _LEAVES_OUT,
        "merge relations by dgl.nn.HeteroGraphConv or block.multi_update_all, or call it on the "
        "slice of each relation, block[relation]",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "several relations at once": Refusal(
        "`update_all`, `apply_edges`, `in_degrees` and `edata` of all relations of a block at once",
        "the function is called", _LEAVES_OUT,
        "call it on the slice of each relation, block[relation], or name the relation (etype=)",
        "distdgl/test_own_operations.py::"
        "test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl"),
    "out-degrees of a block": Refusal(
        "out-degrees of a block or its slice", "the function is called", _LEAVES_OUT,
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
        "`edge_softmax` with `norm_by='src'`", "it is called",
        "edge_softmax with norm_by='src' cannot be used on a meta-partitioned graph: edges are "
        "those of the seeds of all trainers, so it would depend on theirs; {remedy}",
        "use norm_by='dst'", "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a seed's data in a module": Refusal(
        "data that the script has put on destinations, read by a relation's own module at the last "
        "layer", "the module reads it",
        "'{column}' of destinations of {relation} cannot be read by its module at the last layer "
        "of a meta-partitioned graph, because the script has put it on this trainer's own seeds "
        "and the module runs for those of all trainers; {remedy}",
        "give it to the module as input rows of HeteroGraphConv",
        "distdgl/test_children.py::test_what_is_refused_is_named"),
    "a destination's data in a module": Refusal(
        "data that the script has put on destinations, read by the module of an offloaded relation "
        "(`partition.shared`)", "the module reads it",
        "'{column}' of destinations of {relation} cannot be read by its module at layer 1 of a "
        "meta-partitioned graph, because the script has put it on this trainer's own rows and the "
        "module runs for some of all trainers; {remedy}",
        "give it to the module as input rows of HeteroGraphConv, or set partition.shared = rows",
        "distdgl/test_refused.py::test_data_of_destinations_that_other_trainers_have"),
    "edge ids that are not stored": Refusal(
        "reading by edge ids (`dgl.EID`) from a partition that stores none",
        "data is read by edge ids",
        "edge ids (dgl.EID) of {relation} are not stored by this meta-partitioned graph; {remedy}",
        "make it by dgl.distributed.partition_graph, or leave edge features out",
        "distdgl/test_refused.py::test_edge_ids_that_are_written_or_not_stored"),
    "edge ids as numbers": Refusal(
        "edge ids (`dgl.EID`) used for anything but reading data of these edges",
        "the ids are used",
        "edge ids (dgl.EID) of {relation} are good for {remedy}: on a meta-partitioned graph a "
        "block has this machine's edges, for the seeds of all trainers",
        "reading data of these edges alone, g.edges[relation].data['…'][ids]",
        "distdgl/test_edge_data.py::test_what_is_not_computed_edge_by_edge_is_refused"),
    "writing edge ids": Refusal(
        "writing a block's edge ids", "the ids are written",
        "the ids of edges of {relation} cannot be written", "leave them as they are",
        "distdgl/test_refused.py::test_edge_ids_that_are_written_or_not_stored"),
    "other data by the ids of edges": Refusal(
        "a DistTensor without a row for each edge of the relation, read by its edge ids",
        "the DistTensor is read",
        "a DistTensor of {rows} rows is read by the ids of edges of {relation}, of which there are "
        "{edges}; {remedy}",
        "read data of these edges, g.edges[relation].data[…]",
        "distdgl/test_edge_data.py::test_what_is_not_computed_edge_by_edge_is_refused"),
    "rows of edges together": Refusal(
        "sums, softmax and indices over rows of several edges of a block",
        "the function is called",
        "'{function}' of rows of edges of {relation}: on a meta-partitioned graph a block has this "
        "machine's edges, for the seeds of all trainers, so only what is computed edge by edge is "
        "as in plain DistDGL; {remedy}",
        "compute it in a relation's own module or in a message function, which see whole in-edges",
        "distdgl/test_edge_rows.py::test_what_looks_at_several_rows_is_refused"),
    "rows that are not of these edges": Refusal(
        "other rows than those of a block's edges (`torch.rand(num_edges, 1)`), used as edge data",
        "the rows are put on edges or computed with",
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
        "HeteroGraphConv and `multi_update_all` on a slice of a block", "either is called",
        "HeteroGraphConv and multi_update_all take no slice of a block of a meta-partitioned "
        "graph: {remedy}",
        "pass the whole block to them, or call a relation's own convolution on its slice",
        "distdgl/test_refused.py::test_a_slice_in_place_of_a_block"),
    "a merge in a backward pass": Refusal(
        "`torch.utils.checkpoint` around a HeteroGraphConv or `multi_update_all`",
        "the backward pass runs",
        "a block of a meta-partitioned graph cannot be aggregated again inside a backward pass: "
        "{remedy}",
        "use torch.utils.checkpoint for what is inside a relation's module, or between layers, but "
        "not for a HeteroGraphConv",
        "distdgl/test_children.py::test_a_checkpointed_layer_is_refused"),
    "an unknown aggregation": Refusal(
        "merges of relations (`aggregate`, cross reducers) that DGL does not have either",
        "relations are merged",
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
        "rows of edges as input of a convolution of DGL's that takes none", "a layer runs",
        "{conv} is given rows of the edges of {etype}, whose module {module} takes none; {remedy}",
        "leave them out",
        "distdgl/test_refused.py::test_rows_of_edges_for_dgls_convolutions", InputError),
    "data of edges in some batches": Refusal(
        "edge data given to HeteroGraphConv's modules in some batches of an epoch only",
        "a layer runs",
        "data of edges is given to HeteroGraphConv's modules inside an epoch; {remedy}",
        "give it with all batches of an epoch, or with none",
        "distdgl/test_refused.py::test_what_changes_inside_an_epoch"),
    "a node type left out of some batches": Refusal(
        "a node type left out of HeteroGraphConv's inputs in some batches of an epoch only",
        "a layer runs",
        "the rows of '{ntype}' are left out of HeteroGraphConv's inputs inside an epoch; {remedy}",
        "leave a node type out of all batches of an epoch, or of none",
        "distdgl/test_refused.py::test_what_changes_inside_an_epoch"),
    "a hook registered inside an epoch": Refusal(
        "a hook on a GraphConv, registered inside an epoch", "a layer runs",
        "a hook was registered on a GraphConv inside an epoch; {remedy}",
        "register it on all trainers before the epoch's first batch",
        "distdgl/test_refused.py::test_what_changes_inside_an_epoch"),
    "a module that reads edge ids": Refusal(
        "`dgl.EID` read from the graph that a relation's own module gets", "the module runs",
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
        "a relation's module that returns more or fewer rows than it has destinations",
        "the module runs",
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
        "states that are not built of tensors, where relations are offloaded (`partition.shared`)",
        "a layer runs",
        "the states of '{ntype}' that HeteroGraphConv is given are not all tensors; {remedy}",
        "give a tensor, or a tuple, list or dictionary of tensors",
        "distdgl/test_refused.py::test_states_that_trainers_cannot_send"),
    "states left out by some": Refusal(
        "states of a node type left out in some calls, where relations are offloaded "
        "(`partition.shared`)", "a layer runs",
        "the states of '{ntype}' are left out of HeteroGraphConv's inputs in some calls and "
        "trainers and given in others, where one partition aggregates for the others; {remedy}",
        "give the same in all, or set partition.shared = rows",
        "distdgl/test_refused.py::test_states_that_trainers_cannot_send"),
    "states of other tensors": Refusal(
        "states built of other tensors in some calls, where relations are offloaded "
        "(`partition.shared`)", "a layer runs",
        "the states of '{ntype}' are built of other tensors in some calls and trainers than in "
        "others, where one partition aggregates for the others; {remedy}",
        "give the same in all, or set partition.shared = rows",
        "distdgl/test_refused.py::test_states_that_trainers_cannot_send"),
    "own functions in a large group": Refusal(
        "user-defined reduce functions, maxima and minima in `multi_update_all`, and maxima and "
        "minima with an apply function in `update_all` on a slice, in a group of more than 62 "
        "trainers", "`multi_update_all` or `update_all` is called",
        "a group has {trainers} trainers; {remedy}",
        "a user-defined reduce function, or a maximum or minimum, in multi_update_all, or one with "
        "an apply function in update_all on a slice, works with {most}",
        "distdgl/test_refused.py::test_own_functions_in_a_large_group"),
    "own reduce and apply functions for rows without edges": Refusal(
        "a user-defined reduce function together with an apply function in `multi_update_all`, "
        "where rows have no edges", "`multi_update_all` is called",
        "multi_update_all with a reduce function and an apply function of the script's own: some "
        "rows have no edge here, so the apply function cannot run for them; {remedy}",
        "apply it to the merged rows instead",
        "distdgl/test_refused.py::test_own_reduce_and_apply_functions_for_rows_without_edges"),
    "a row of several batches with other relations": Refusal(
        "a row in the batches of several trainers, of which only some have edges of a relation, "
        "with functions whose result depends on that",
        "`multi_update_all`, or `update_all` with an apply function on a slice, is called",
        "{operation} over {relation} at layer {layer}: a row is in the batches of several "
        "trainers, of which some have edges of this relation and some have none, so plain DGL "
        "would give it several results; {remedy}",
        "use fn.sum or fn.mean to reduce, or 'sum' as the cross reducer, and the same relations in "
        "every batch",
        "distdgl/test_refused.py::test_functions_of_multi_update_all_that_tell_batches_apart"),
    "a relation named twice": Refusal(
        "a relation that is in the dictionary of `multi_update_all` twice, by its name and in full",
        "`multi_update_all` is called",
        "multi_update_all is given functions for {relation} twice, by its name and in full; "
        "{remedy}",
        "name each relation once; for another message along it call multi_update_all again, with "
        "another output field",
        "distdgl/test_refused.py::test_a_relation_that_is_named_twice"),
    "a relation left out by who has its edges": Refusal(
        "a relation left out of `multi_update_all` by a trainer whose machine has its edges",
        "`multi_update_all` is called",
        "trainers call multi_update_all with different relations: {relation} is not in the "
        "dictionary of trainer {trainer}, whose machine has its edges; {remedy}",
        "give all trainers the same relations",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "other functions on some trainers": Refusal(
        "functions of `multi_update_all` that differ between trainers",
        "`multi_update_all` is called",
        "trainers call multi_update_all with different functions for {relation}; {remedy}",
        "give all trainers the same",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "other relations on some trainers": Refusal(
        "relations of `multi_update_all` that differ between trainers, unless built-in functions "
        "are summed", "`multi_update_all` is called",
        "trainers call multi_update_all with different relations, which plain sums alone can do: "
        "the cross reducer is {reducer!r}; {remedy}",
        "give all trainers the same relations, also those without edges (block.num_edges, and "
        "which types have rows, are this machine's)",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "relations in other orders": Refusal(
        "orders of relations that differ between trainers, for a callable cross reducer",
        "`multi_update_all` is called",
        "trainers call multi_update_all with their relations in different orders, which a callable "
        "cross reducer may depend on; {remedy}",
        "give all trainers the same",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "other arguments on some trainers": Refusal(
        "cross reducers, or shapes or dtypes of data, that differ between trainers",
        "`multi_update_all` is called",
        "trainers call multi_update_all with different {what}: {value} on trainer {trainer}, "
        "{other_value} on trainer {other}; {remedy}",
        "give all trainers the same",
        "distdgl/test_multi_update.py::test_what_trainers_do_differently_is_one_error_on_all"),
    "slices called differently": Refusal(
        "calls on slices of blocks that differ between trainers", "a slice's function is called",
        "trainers call slices of blocks differently: {what}; {remedy}",
        "let every trainer call the slices of all relations in the same order, whatever its "
        "machine has of them (whether block.num_edges(relation) is 0 is the same on all trainers; "
        "numbers of nodes are not)",
        "distdgl/test_slices.py::test_calls_that_differ_between_trainers_are_named_on_all"),
}

# --- features, DistEmbedding, sparse optimizers (rows/) -------------------------------------------

ROWS: dict[str, Refusal] = {
    "writes to node data": Refusal(
        "writing node data of the graph", "the DistTensor is written",
        "'{name}' belongs to the meta-partitioned graph and is read from its store on every "
        "machine, so it cannot be written; {remedy}",
        "create a dgl.distributed.DistTensor for results",
        "distdgl/test_distdgl.py::"
        "test_a_standalone_script_samples_by_fanouts_and_is_told_what_it_cannot_do"),
    "writes to cached node data": Refusal(
        "writing node data of a graph in DGL's own parts, with a cache (`cache.policy`)",
        "the DistTensor is written",
        "'{name}' belongs to the graph, and trainers may have cached rows of it (cache.policy), "
        "which would not see what is written; {remedy}",
        "use cache.policy=none, or create a dgl.distributed.DistTensor for results",
        "distdgl/test_distdgl_cache.py::test_feature_reads_go_through_the_cache"),
    "replicas of several trainers": Refusal(
        "`train.learnable = replica` with several trainers on a machine", "a DistEmbedding is made",
        "train.learnable = replica with {trainers} trainers on a machine: they would update the "
        "same rows at once; {remedy}",
        "start one trainer on each machine, or set train.learnable = exact",
        "distdgl/test_ids.py::test_replicas_of_several_trainers_of_a_machine_are_refused",
        InputError),
    "writes to replicas": Refusal(
        "writing rows of a DistEmbedding (`emb.weight[ids] = rows`) after it was read, with "
        "`train.learnable = replica`", "the rows are written",
        "rows of the DistEmbedding '{name}' are written after it was read: with train.learnable = "
        "replica trainers have copies of rows, which would stay as they were; {remedy}",
        "write them before the first read, or set train.learnable = exact",
        "distdgl/test_ids.py::test_rows_that_trainers_have_copies_of_are_not_written"),
    "another sparse optimizer": Refusal(
        "sparse optimizers but SparseAdam and SparseAdagrad", "a sparse optimizer steps",
        "optimizer {optimizer} cannot be used on a meta-partitioned graph; {remedy}",
        "use dgl.distributed.optim.SparseAdam or SparseAdagrad",
        "distdgl/test_row_steps.py::test_another_optimizer_is_refused"),
}

# --- data loaders and samplers (loading/) ---------------------------------------------------------

_STANDALONE = ("distdgl/test_distdgl.py::"
               "test_a_standalone_script_samples_by_fanouts_and_is_told_what_it_cannot_do")
_LINKS = ("distdgl/test_links.py::"
          "test_two_trainers_on_each_of_two_hosts_compute_what_one_process_does")

LOADING: dict[str, Refusal] = {
    "loader on a device": Refusal(
        "data loaders with a `device` other than the CPU", "a data loader is made",
        "{loader} with device={device!r} cannot be used with a DistGraph; {remedy}",
        "leave it out and move blocks with block.to(device)", _STANDALONE, InputError),
    "sampler of another kind": Refusal(
        "DGL's samplers other than NeighborSampler, none of which samples a DistGraph",
        "a data loader is made",
        "sampler {sampler} cannot be used on a meta-partitioned graph, nor on a DistGraph of plain "
        "DGL; {remedy}",
        "use dgl.dataloading.NeighborSampler (MultiLayerNeighborSampler) or "
        "MultiLayerFullNeighborSampler",
        "distdgl/test_samplers.py::test_batches_are_made_ahead_where_a_class_adds_nothing",
        InputError),
    "sampler with replace": Refusal(
        "NeighborSampler with `replace=True`", "a data loader is made",
        "{sampler} with replace={value!r} cannot be used on a meta-partitioned graph; {remedy}",
        "leave it out", _STANDALONE, InputError),
    "sampler with prob": Refusal(
        "NeighborSampler with a `prob=` that is not the name of edge data", "a data loader is made",
        "{sampler} with prob={value!r} cannot be used on a meta-partitioned graph; {remedy}",
        "give the name of edge data with 0 and 1 (mask=)", _STANDALONE, InputError),
    "sampler with exclude_eids": Refusal(
        "`NeighborSampler.sample_blocks` with `exclude_eids`", "a batch is asked for",
        "NeighborSampler.sample_blocks with exclude_eids cannot be used on a meta-partitioned "
        "graph, but by DistEdgeDataLoader with exclude; {remedy}",
        "leave it out", "distdgl/test_samplers.py::test_exclude_eids_of_a_node_loader_is_refused",
        InputError),
    "loader that changes": Refusal(
        "a data loader or sampler that is changed after the data loader was made (fanouts, mask, "
        "`sample_blocks`, `batch_size`, `shuffle`, `drop_last`)",
        "an epoch is started or a batch asked for",
        "{what} has changed since the data loader was made: {then!r} then, {now!r} now; {remedy}",
        "make a loader for each", "distdgl/test_samplers.py::"
        "test_what_changes_after_a_loader_was_made_is_refused"),
    "more layers than hops": Refusal(
        "a sampler with more layers than the plan has hops", "a data loader is made",
        "{sampler} samples {layers}, but the graph was partitioned for {hops}; {remedy}",
        "partition it with {wanted} (model.layers in the settings, or --hops)", _STANDALONE,
        InputError),
    "seeds of no target, in several layers": Refusal(
        "seeds of a node type that is not a target, with several layers", "a data loader is made",
        "the data loader is for nodes of type '{ntype}' and {layers} layers, but the graph was "
        "partitioned for the target {targets}; {remedy}",
        "partition it with target '{ntype}', or compute the states of all nodes layer by layer",
        _STANDALONE, InputError),
    "seeds of types that came later": Refusal(
        "seeds of a type that the data loader was not made for", "a batch is asked for",
        "seeds of the data loader are of type {others}, but it was made for nodes of type {types}; "
        "{remedy}",
        "give all types when it is made, and partition the graph with these targets",
        "distdgl/test_samplers.py::test_seeds_are_of_the_loaders_types", InputError),
    "trainer without a seed for each step": Refusal(
        "so few seeds on one trainer that it has none in a step of the others",
        "a data loader is made",
        "trainer {rank} has {has}, but {steps} steps are needed for the {most} seeds of another "
        "trainer in batches of {batch_size}; every trainer needs a seed in each step: {remedy}",
        "split the nodes evenly (node_split with force_even=True){otherwise}",
        "distdgl/test_samplers.py::test_every_trainer_has_a_seed_in_each_step", InputError),
    "node twice in a batch": Refusal(
        "the same node twice in a trainer's batch", "a batch is asked for",
        "{batch} has node {node} of type '{ntype}' twice: DistDGL's block would give the edges of "
        "both to one of its rows, and none to the other; {remedy}",
        "give the data loader each node once (torch.unique), and weigh the loss instead",
        "distdgl/test_programs.py::test_a_node_twice_in_a_batch_is_named", InputError),
    "edges that end at no target": Refusal(
        "DistEdgeDataLoader for edges with an end that is not of a target type",
        "a data loader is made",
        "edges of the data loader end at nodes of type {missing}, but the graph was partitioned "
        "for the target {targets}; {remedy}",
        "partition it with target_ntype={wanted} (with a file of settings, partition.target = "
        "{wanted})", _LINKS, InputError),
    "edges with g_sampling": Refusal(
        "DistEdgeDataLoader with `g_sampling`", "a data loader is made",
        "DistEdgeDataLoader with g_sampling cannot be used on a meta-partitioned graph; {remedy}",
        "leave it out, neighbours are sampled from the whole graph", _LINKS, InputError),
    "negatives of the whole graph": Refusal(
        "the negative sampler GlobalUniform", "a data loader is made",
        "negative sampler GlobalUniform asks a graph that is whole on one machine, and DistDGL's "
        "has no such function; {remedy}",
        "use negative_sampler.Uniform (PerSourceUniform), or a function of your own", _LINKS,
        InputError),
}

# --- DistributedDataParallel (training/) ----------------------------------------------------------

TRAINING: dict[str, Refusal] = {
    "gradients averaged another way": Refusal(
        "options and methods of DistributedDataParallel that change which gradients are averaged, "
        "or how (`process_group`, `mixed_precision`, communication hooks, `Join`, …)",
        "a module is wrapped, or the method called",
        "DistributedDataParallel {what} cannot be used with a module wrapper of dgl-heta: {why}",
        "leave it out", "distdgl/test_wrappers.py::test_what_would_average_another_way_is_named",
        InputError),
    "wrapped before the graph": Refusal(
        "wrapping a module in DistributedDataParallel before the graph is opened",
        "the graph is opened",
        "DistributedDataParallel was called before the {what} {was}, so it averages gradients the "
        "plain way; {do} first",
        "open the graph first",
        "distdgl/test_wrappers.py::test_a_module_that_was_wrapped_too_early_is_named", InputError),
    "second backward pass": Refusal(
        "a second backward pass through one forward pass of a wrapped module",
        "a backward pass ends",
        "a second backward pass through one forward pass of a DistributedDataParallel module is "
        "not averaged over the trainers; {remedy}",
        "add the losses up and call backward once, or run both inside no_sync and average yourself",
        "distdgl/test_programs.py::test_a_second_backward_pass_that_nobody_averages_is_refused"),
    "a backward pass that failed": Refusal(
        "going on after a backward pass of a wrapped module that failed, as in `try: "
        "loss.backward()`", "the wrapped module is called",
        "the backward pass before this forward pass failed, so trainers do not know whose "
        "gradients are whole; {remedy}",
        "let the script end, and begin it anew from its last checkpoint",
        "distdgl/test_wrappers.py::test_a_backward_pass_that_failed_is_not_forgotten"),
    "look at a gradient inside a model": Refusal(
        "`register_hook` and `retain_grad` on tensors inside a model", "a backward pass runs",
        "{call} on a tensor inside a model would see this machine's part of its gradient alone; "
        "{remedy}",
        "use it on what the model returns",
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
}

# --- DistGraph, partitions, queries, sessions (graph/, session.py) --------------------------------

SESSION: dict[str, Refusal] = {
    "train.seed_states": Refusal(
        "`train.seed_states = false`", "a DistGraph is made",
        "train.seed_states = false cannot be used with DistDGL scripts: HeteroGraphConv reads the "
        "destinations' states; {remedy}",
        "leave it out", "distdgl/test_session.py::test_refused_settings", InputError),
    "train.dtype": Refusal(
        "`train.dtype`", "a DistGraph is made",
        "train.dtype = '{dtype}' cannot be used with DistDGL scripts: the script's own model "
        "decides; {remedy}",
        "leave it out", "distdgl/test_session.py::test_refused_settings", InputError),
    "train.trainers": Refusal(
        "`train.trainers`", "a DistGraph is made",
        "train.trainers = {trainers} has no effect on DistDGL scripts: the launcher says how many "
        "trainers a machine has; {remedy}",
        "leave it out", "distdgl/test_session.py::test_refused_settings", InputError),
    "in-edges of a node that are cut": Refusal(
        "a partition that cuts the in-edges of single nodes (hubs)", "a DistGraph is made",
        "the partition {part_config} cuts the in-edges of single nodes by '{relation}', which "
        "modules and message functions of scripts see whole; {remedy}",
        "make it again with partition.cut = ranges, or by `dgl-heta partition` with "
        "partition.hubs = 0",
        "distdgl/test_session.py::test_in_edges_of_a_node_that_are_cut_are_refused", InputError),
    "reference of metapaths": Refusal(
        "`dgl-heta prove` with a partition that follows metapaths", "a DistGraph is made",
        "the partition follows metapaths, so plain DGL samples other edges and there is nothing to "
        "compare with; {remedy}", "partition it by hops",
        "distdgl/test_session.py::test_nothing_can_be_compared_to_metapaths", InputError),
    "no process group": Refusal(
        "a data loader that is made before `torch.distributed.init_process_group` is called",
        "the first data loader is made",
        "{remedy}: trainers exchange partial aggregations",
        "call torch.distributed.init_process_group before the first data loader",
        "distdgl/test_session.py::test_trainers_need_a_process_group", InputError),
}

_ARGUMENTS = "distdgl/test_partition_arguments.py::"
_SERVERS = "distdgl/test_read_back.py::test_what_servers_cannot_hold_is_named_when_they_start"

GRAPH: dict[str, Refusal] = {
    "partition over another one": Refusal(
        "`partition_graph` into a directory with an earlier partition, under `dgl-heta run`",
        "`partition_graph` is called",
        "{path} exists and holds a partition; {remedy}",
        "choose another directory or ask to overwrite it (dgl-heta run --overwrite, or "
        "overwrite=True of partition_graph)",
        "distdgl/test_earlier_partitions.py::"
        "test_the_command_replaces_an_earlier_partition_only_if_it_is_asked_to", InputError),
    "parts in GraphBolt's form": Refusal(
        "`use_graphbolt=True` and conversions to GraphBolt's form", "parts are opened or converted",
        "{what} cannot be used with {part_config}, a meta-partitioned graph: its parts have no "
        "form for GraphBolt, trainers sample from the relation store; {remedy}",
        "leave it out (in dgl.distributed.initialize as well), or partition with "
        "part_method='metis' for GraphBolt",
        _ARGUMENTS + "test_graphbolt_is_refused_by_name_on_a_meta_partition_and_works_on_dgls",
        InputError),
    "data that are added to parts": Refusal(
        "data that a program adds to the parts after `partition_graph`", "a part is loaded",
        "{path} was not written by dgl-heta: what a program adds to DGL's parts after "
        "partition_graph is not read from a meta-partition; {remedy}",
        "give the graph its data before, or let DGL partition (part_method='metis' or 'random') "
        "and make meta-partitions of its parts by `dgl-heta partition PARTS/NAME.json`",
        _ARGUMENTS + "test_data_that_a_program_adds_to_the_parts_later_are_named", InputError),
    "data of a dtype that servers have not": Refusal(
        "data of dtypes that DistDGL's servers cannot hold (bfloat16, complex, …)",
        "servers start",
        "{what}: they are {dtype}; {remedy}",
        "convert them before partition_graph, complex ones by torch.view_as_real", _SERVERS,
        InputError),
    "edge data without numbers": Refusal(
        "edge data with empty rows (a dimension of 0)", "servers start",
        "{what}: their rows {shape} have no numbers; {remedy}", "leave them out", _SERVERS,
        InputError),
    "data with a mark in the name": Refusal(
        "node or edge data with `/` or `~` in the name", "servers start",
        "{what}: the name has a '{mark}', by which they separate names; {remedy}",
        "rename them before partition_graph", _SERVERS, InputError),
    "data with a long name": Refusal(
        "node or edge data whose name is too long for shared memory", "servers start",
        "{what}: the name is too long for shared memory; {remedy}",
        "shorten it before partition_graph", _SERVERS, InputError),
    "shared memory of another program": Refusal(
        "a second DGL program on the machine with a graph of the same name", "servers start",
        "'{name}' in shared memory belongs to another DGL program on this machine (process {pid}): "
        "DGL names it by the graph and the feature alone, so one of the two would read the "
        "other's; {remedy}",
        "wait for its end, or emulate hosts (`dgl-heta launch --hosts`), which have a shared "
        "memory of their own",
        "distdgl/test_shared_memory.py::test_shared_memory_of_another_program_is_refused"),
    "request of a trainer without dgl-heta": Refusal(
        "a trainer that runs without dgl-heta on a meta-partitioned graph",
        "the trainer asks a server for edges",
        "{request} reached the server of the meta-partitioned graph {graph}, which holds no edges: "
        "a trainer runs without dgl-heta; {remedy}",
        "start all processes by `dgl-heta launch` or `dgl-heta run`",
        "distdgl/test_read_back.py::test_a_request_to_a_server_without_edges_is_named"),
    "find_edges without etype": Refusal(
        "`DistGraph.find_edges` without `etype`, on a graph with several relations",
        "the function is called",
        "find_edges needs etype on a graph with several relations",
        "name the relation",
        "distdgl/test_queries.py::test_edges_of_several_relations_need_a_type", InputError),
    "sampling by servers": Refusal(
        "`sample_neighbors` and `sample_etype_neighbors` with `edge_dir='out'` or `use_graphbolt`",
        "the function is called",
        "sampling with {name}={value!r} cannot be used on a meta-partitioned graph; {remedy}",
        "sample with DistNodeDataLoader, or load the graph with dgl.distributed.load_partition",
        _STANDALONE),
    "edges of a store without ids": Refusal(
        "`find_edges` and `edge_subgraph` with a store that keeps no edge ids",
        "the function is called",
        "the store {directory} keeps no edge ids, by which edges are known; {remedy}",
        "partition the graph by partition_graph, which keeps them",
        "distdgl/test_queries.py::test_a_store_without_edge_ids_says_so"),
}

# --- GraphBolt's scripts on a meta-partition (dgl_heta/graphbolt/) --------------------------------

_PIPELINES = ("graphbolt/test_graphbolt_training.py::"
              "test_what_a_pipeline_cannot_do_is_refused_by_name")
_WHOLE_GRAPH = ("leave partition.graphbolt out of the settings to sample the whole graph, by plain "
                "GraphBolt")

GRAPHBOLT: dict[str, Refusal] = {
    "another sampler of GraphBolt": Refusal(
        "GraphBolt's samplers other than `sample_neighbor`", "a pipeline is made",
        "{sampler} cannot be used with the meta-partition that partition.graphbolt names: {remedy}",
        "give the graph of the data set (gb.OnDiskDataset(…).load().graph) to "
        "datapipe.sample_neighbor, or leave partition.graphbolt out", _PIPELINES, InputError),
    "options of sample_neighbor": Refusal(
        "`sample_neighbor` with `replace`, `prob_name`, `deduplicate` or `sampler`",
        "a pipeline is made",
        "sample_neighbor with {option}={value!r} cannot be used on a meta-partition; {remedy}",
        "leave it out", _PIPELINES, InputError),
    "fanout of all relations together": Refusal(
        "one fanout for all relations together, in a GraphBolt pipeline", "a pipeline is made",
        "a fanout of {numbers} is for all relations together, or for another graph: on a "
        "meta-partition each relation has its own, drawn by the parts apart; {remedy}",
        "give one for each of the {count} relations, torch.full((len(graph.num_edges),), k), or "
        "-1 for all neighbours", _PIPELINES, InputError),
    "links in a pipeline": Refusal(
        "link prediction and edge tasks in GraphBolt pipelines", "a pipeline is made or iterated",
        "link prediction and edges in GraphBolt pipelines cannot be sampled on a meta-partition; "
        "{remedy} (docs/switching.md)",
        "DistEdgeDataLoader can", _PIPELINES, InputError),
    "another mini-batch": Refusal(
        "mini-batches of a class of the script's own, in a GraphBolt pipeline",
        "a batch is asked for",
        "a mini-batch of class {kind} cannot be sampled on a meta-partition; {remedy}",
        "let the item sampler make dgl.graphbolt.MiniBatch", _PIPELINES, InputError),
    "sampling by time": Refusal(
        "temporal sampling in GraphBolt pipelines", "a batch is asked for",
        "sampling by time cannot be done on a meta-partition; {remedy}",
        "leave the timestamps out of the item set", _PIPELINES, InputError),
    "seeds of no target in a pipeline": Refusal(
        "seeds of a node type that is not a target, in a GraphBolt pipeline",
        "a batch is asked for",
        "a batch has seeds of type {other}, but the graph was partitioned for the target "
        "{targets}; {remedy}",
        "partition it with --target {wanted}", _PIPELINES, InputError),
    "edges of a mini-batch": Refusal(
        "attributes and functions of a GraphBolt mini-batch that give sampled edges",
        "the edges are read",
        "{reads} of a mini-batch cannot be used on a meta-partition, where a rank has its part's "
        "edges alone; {remedy}",
        "use minibatch.blocks and dgl.nn.HeteroGraphConv", _PIPELINES, InputError),
    "edges of the data set's graph": Refusal(
        "functions that read edges of a GraphBolt data set's graph", "the function is called",
        "{reads} of the data set's graph cannot be used on a meta-partition: a rank has its part's "
        "relations alone; {remedy}",
        "learn from nodes by datapipe.sample_neighbor(graph, fanouts), or " + _WHOLE_GRAPH,
        _PIPELINES, InputError),
    "homogeneous data set": Refusal(
        "a homogeneous GraphBolt data set", "the data set is loaded",
        "the data set's graph is homogeneous, and a meta-partition is of a heterogeneous one; "
        "{remedy}",
        _WHOLE_GRAPH,
        "graphbolt/test_graphbolt_training.py::test_a_homogeneous_data_set_is_refused",
        InputError),
    "pipeline on another thread": Refusal(
        "prefetchers, and data loaders other than `gb.DataLoader`", "a pipeline is iterated",
        "a pipeline of a meta-partition is iterated by the process and on the thread that made it: "
        "ranks exchange in one order; {remedy}",
        "leave prefetchers and other data loaders than gb.DataLoader out",
        "graphbolt/test_graphbolt_training.py::test_a_pipeline_on_another_thread_is_refused"),
}

TABLE: dict[str, Refusal] = {
    **LOADING, **BLOCKS, **MODULES, **ROWS, **AUTOGRAD, **TRAINING, **SESSION,
    **GRAPH, **GRAPHBOLT}


def refuse(name: str, /, **facts: Any) -> NoReturn:
    """Raise the error of an entry of the table."""
    raise TABLE[name].error(**facts)
