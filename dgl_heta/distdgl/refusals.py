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
        "a DistEmbedding that is made after a batch that its rows are read for",
        "its rows are read",
        "a DistEmbedding of '{ntype}' was made after the batch that its rows are read for was "
        "sampled; {remedy}", "make it before the data loader is iterated",
        "distdgl/test_handed.py::test_ids_from_before_there_was_an_embedding_are_refused"),
    "id of a batch twice": Refusal(
        "rows of a DistEmbedding by an id of a batch twice", "its rows are read",
        "rows of the DistEmbedding of '{ntype}' are read with an id of a batch twice: on a "
        "meta-partitioned graph its input nodes are those of all trainers; {remedy}",
        "read each row once (torch.unique), and rows for this trainer alone by ids that it has "
        "drawn itself",
        "distdgl/test_handed.py::test_an_id_of_a_batch_twice_is_refused_but_of_own_seeds"),
    "ids as numbers": Refusal(
        "rows of a DistEmbedding by some of a batch's ids that were taken out as numbers",
        "its rows are read",
        "rows of the DistEmbedding of '{ntype}' are read by numbers, some of those that were taken "
        "out of a batch's ids (numpy(), tolist()), so it cannot be told which trainers read them "
        "in DistDGL; {remedy}",
        "read them by the tensors of the data loader (the input nodes, or a block's dgl.NID) and "
        "selections of them; where the script draws such ids itself, let it take none out as "
        "numbers", "distdgl/test_handed.py::"
        "test_ids_that_were_taken_out_as_numbers_are_known_again_or_refused"),
    "loss": Refusal(
        "a loss of rows or numbers of the group's batch, beyond own seeds and past all merges of "
        "relations", "backward() is called",
        "{text}, beyond this trainer's own seeds and past all merges of relations. With RAF that "
        "is of what this machine reads for the seeds of all trainers, so gradients would not be "
        "those of plain DGL. {remedy}",
        "Use rows of own seeds, which come first (rows[:n]), numbers of own seeds, or whole "
        "parameters (weight_decay); see docs/switching.md, 'Whose rows and numbers'",
        "distdgl/test_scope.py::test_a_loss_of_rows_or_numbers_of_the_group_is_refused"),
    "incomplete states": Refusal(
        "states that are not complete here, written to a tensor with a row for each node",
        "they are written, at a step to prove",
        "{what} are written to a tensor with a row for each node, and some of them are not "
        "complete here: of other trainers' seeds those that no edge of this machine reads; "
        "{remedy}",
        "set train.complete_states = true, or write the rows of own seeds, which come first "
        "(rows[:n])", "distdgl/test_scope.py::test_incomplete_states_are_not_kept"),
    "hook of a parameter": Refusal(
        "hooks on gradients of parameters", "the module's forward pass",
        "parameter {name} has a hook on its gradient, which would see this machine's part of it "
        "alone; {remedy}", _AVERAGED,
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "backward hook of a module": Refusal(
        "backward hooks of modules", "the module's forward pass",
        "module {name} has a backward hook, which would see this machine's part of a gradient "
        "alone; {remedy}", _AVERAGED,
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
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
        "parameters below the first layer that are not in DistributedDataParallel (GraphBolt)",
        "the first layer runs",
        "a parameter of shape {shape} below the first layer is not in DistributedDataParallel, so "
        "its gradient would be of this part's relations alone; {remedy}",
        "wrap learnable embeddings with the model, or on their own",
        "distdgl/test_partial_gradients.py::test_parameters_below_are_to_be_wrapped"),
    "gradient below a merge": Refusal(
        "`torch.autograd.grad` with respect to what lies below a merge and is no parameter",
        "it is called",
        "torch.autograd.grad with respect to a tensor of shape {shape} below a merge of relations, "
        "which is no nn.Parameter, would give this machine's part of the gradient, for the seeds "
        "of all trainers; {remedy}", _FOR_ITSELF,
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "second derivatives": Refusal(
        "second derivatives through merges (`create_graph`, `is_grads_batched`)",
        "torch.autograd.grad is called",
        "torch.autograd.grad of parameters below a merge of relations cannot be taken with "
        "create_graph or is_grads_batched on a meta-partitioned graph{remedy}", "",
        "distdgl/test_programs.py::test_what_would_see_a_part_of_a_gradient_is_refused"),
    "partial gradient": Refusal(
        "a gradient below a merge, used before it is averaged (its norm, a step of an optimizer)",
        "it is used",
        "the gradient of a parameter (shape {shape}) is {how} before it is averaged: it is this "
        "machine's part, for the seeds of all trainers, where plain DGL has that of the own seeds. "
        "{remedy}",
        "Let DistributedDataParallel average it (with the parameter in the module that is wrapped, "
        "outside of no_sync), or sum it over the trainers by torch.distributed.all_reduce before "
        "anything but sums and scaling",
        "distdgl/test_scope.py::test_a_gradient_is_summed_over_the_trainers_before_it_is_used"),
    "forward pass let go": Refusal(
        "losses of different forward passes on different trainers, of batches that are gone",
        "backward() is called",
        "another trainer's loss depends on a forward pass that this trainer's does not depend on, "
        "and has let go; {remedy}",
        "let the losses of all trainers depend on the same forward passes",
        "distdgl/test_partial_gradients.py::test_forward_passes_that_were_let_go"),
}

# --- blocks and their edges (blocks/) -------------------------------------------------------------

BLOCKS: dict[str, Refusal] = {}

# --- HeteroGraphConv, multi_update_all, slices (modules/) -----------------------------------------

MODULES: dict[str, Refusal] = {}

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

GRAPH: dict[str, Refusal] = {
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
    "replication": Refusal(
        "a partition without full replication of boundary nodes", "a DistGraph is made",
        "the partition {part_config} was made with replication = {replication}, which DistDGL "
        "scripts cannot use: their blocks have common rows for seeds alone; {remedy}",
        "partition with --replication full",
        "distdgl/test_session.py::test_a_partition_without_replication_is_refused", InputError),
    "reference of metapaths": Refusal(
        "`dgl-heta prove` of a partition that follows metapaths", "a DistGraph is made",
        "the partition follows metapaths, so plain DGL samples other edges and there is nothing to "
        "compare with; {remedy}", "partition it by hops",
        "distdgl/test_session.py::test_nothing_can_be_compared_to_metapaths", InputError),
    "no process group": Refusal(
        "a data loader before `torch.distributed.init_process_group`",
        "the first data loader is made",
        "{remedy}: trainers exchange partial aggregations",
        "call torch.distributed.init_process_group before the first data loader",
        "distdgl/test_session.py::test_trainers_need_a_process_group", InputError),
}

TABLE: dict[str, Refusal] = {**LOADING, **BLOCKS, **MODULES, **ROWS, **AUTOGRAD, **GRAPH}


def refuse(name: str, /, **facts: Any) -> NoReturn:
    """Raise the error of an entry of the table."""
    raise TABLE[name].error(**facts)
