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

GRAPH: dict[str, Refusal] = {}

TABLE: dict[str, Refusal] = {**LOADING, **BLOCKS, **MODULES, **ROWS, **AUTOGRAD, **GRAPH}


def refuse(name: str, **facts: Any) -> NoReturn:
    """Raise the error of an entry of the table."""
    raise TABLE[name].error(**facts)
