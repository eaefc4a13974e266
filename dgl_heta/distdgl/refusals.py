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
    "shared rows": Refusal(
        "`partition.shared = delegate` on a partition that was made without it",
        "a DistGraph is made",
        "partition.shared = delegate, but the partition {part_config} was made without it; "
        "{remedy}",
        "partition the graph with this setting",
        "distdgl/test_session.py::test_refused_settings", InputError),
    "no process group": Refusal(
        "a data loader before `torch.distributed.init_process_group`",
        "the first data loader is made",
        "{remedy}: trainers exchange partial aggregations",
        "call torch.distributed.init_process_group before the first data loader",
        "distdgl/test_session.py::test_trainers_need_a_process_group", InputError),
}

TABLE: dict[str, Refusal] = {**LOADING, **BLOCKS, **MODULES, **ROWS, **AUTOGRAD, **GRAPH}


def refuse(name: str, **facts: Any) -> NoReturn:
    """Raise the error of an entry of the table."""
    raise TABLE[name].error(**facts)
