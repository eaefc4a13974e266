"""Links that a user has split: a table of source, destination and split (`task.links`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.named import NamedNodes
from dgl_heta.graph.readers.splits import WORDS, words
from dgl_heta.graph.readers.tables import Table
from dgl_heta.graph.schema import Relation
from dgl_heta.store import Store

Ends = tuple[np.ndarray, np.ndarray]
"""Source and destination nodes of some links, int64."""


def read_links(path: str | Path, store: Store, relation: Relation) -> dict[str, Ends]:
    """The links of a table by their split; no entry for train where no row is for training.

    Its columns are `src`, `dst` and `split` (train, val, test, or empty for rows to skip). Ends
    are the nodes' own ids where the graph has some, else their numbers.

    Raises
    ------
    InputError
        The file is no such table; an end that no node has; a link of two splits; no link for
        validation or test.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"task.links: there is no file {path}")
    table, names = Table(path), NamedNodes()
    ends = []
    for column, ntype in (("src", relation.src), ("dst", relation.dst)):
        own = store.ids(ntype)
        if own is not None and ntype not in names:
            names.add_ids(ntype, own)
        table.check(column, f" for the '{ntype}' of task.links")
        ends.append(names.numbers(table, column, ntype, store.schema.node_counts[ntype])
                    .astype(np.int64))
    split = words(table, "split", " for task.links")
    sources, destinations = ends
    pairs = sources * store.schema.node_counts[relation.dst] + destinations
    _check_apart(table, pairs, split)
    found = {name: (sources[split == i], destinations[split == i])
             for i, name in enumerate(WORDS)}
    if not len(found["val"][0]) and not len(found["test"][0]):
        raise InputError(f"{path} has no link for val or test in column 'split'; without it "
                         "task.held_out has a share of the links held out")
    if not len(found["train"][0]):
        del found["train"]
    return found


def _check_apart(table: Table, pairs: np.ndarray, split: np.ndarray) -> None:
    """Refuse a pair of nodes in two splits: what is trained on would be asked for."""
    order = np.argsort(pairs, kind="stable")
    order = order[split[order] >= 0]
    again = (pairs[order][1:] == pairs[order][:-1]) & (split[order][1:] != split[order][:-1])
    if again.any():
        at = int(np.flatnonzero(again)[0])
        one, two = sorted((int(order[at]), int(order[at + 1])))
        raise InputError(f"{table.path}, row {two + 1}: this link is in "
                         f"{quoted(WORDS[split[two]])}, and in {quoted(WORDS[split[one]])} in row "
                         f"{one + 1}; a link is in one split only, as what is trained on must not "
                         "be asked for")
