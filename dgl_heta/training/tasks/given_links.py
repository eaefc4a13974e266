"""Links that a user has split: a table of source, destination and split (`task.links`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dgl_heta.errors import InputError, listing, quoted
from dgl_heta.graph.readers.named import IdColumns
from dgl_heta.graph.readers.splits import WORDS, split_words
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.held_out import Edges
from dgl_heta.store import Store


class Links(NamedTuple):
    """Some links, int64 arrays (links,): the places of their relations among those that are
    predicted, source nodes, destination nodes, times (0 in a graph without)."""

    places: np.ndarray
    sources: np.ndarray
    destinations: np.ndarray
    times: np.ndarray

    def at(self, chosen: np.ndarray) -> Links:
        """Some of them, by their positions or a mask."""
        return Links(*(values[chosen] for values in self))

    def by_relation(self, relations: Sequence[Relation]) -> Iterator[tuple[np.ndarray, Edges]]:
        """For each relation that has links, which they are (bool), and its edges."""
        for i in np.unique(self.places):
            own = self.places == i
            yield own, (relations[i], self.sources[own], self.destinations[own])


def read_links(path: str | Path, store: Store, relations: Sequence[Relation]) -> dict[str, Links]:
    """The links of a table by their split; no entry for train where no row is for training.

    Its columns are `src`, `dst` and `split` (train, val, test, or empty for rows to skip), and of
    several relations also `relation`. Ends are the nodes' own ids where the graph has some, else
    their numbers.

    Raises
    ------
    InputError
        The file is no such table; an end that no node has; a link of two splits; no link for
        validation or test; several relations that do not join the same node types.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"task.links: there is no file {path}")
    table = ColumnTable(path)
    places, sources, destinations = link_ends(table, store, relations, "task.links", "src", "dst")
    links = Links(places, sources, destinations, np.zeros(len(places), np.int64))
    split = split_words(table, "split", " for task.links")
    _check_apart(table, links, split)
    of_splits = {name: links.at(split == i) for i, name in enumerate(WORDS)}
    if not len(of_splits["val"].places) and not len(of_splits["test"].places):
        raise InputError(f"{path} has no link for val or test in column 'split'; without it "
                         "task.held_out has a share of the links held out")
    if not len(of_splits["train"].places):
        del of_splits["train"]
    return of_splits


def link_ends(table: ColumnTable, store: Store, relations: Sequence[Relation], what: str,
              *columns: str) -> tuple[np.ndarray, ...]:
    """Of each row of a table the place of its relation, and the nodes that two columns name,
    int64. `what` is the setting that names the table.

    Raises
    ------
    InputError
        No such column; an end that no node has; relations that do not join the same node types.
    """
    one, names = relations[0], IdColumns()
    if other := [r for r in relations if (r.src, r.dst) != (one.src, one.dst)]:
        raise InputError(f"{what} has links between nodes of two types, but '{other[0]}' does "
                         f"not join those of '{one}'; leave it out, or train for one of them")
    ends = []
    for column, ntype in zip(columns, (one.src, one.dst)):
        own = store.ids(ntype)
        table.check(column, f" for the '{ntype}' of {what}")
        ends.append(names.numbers(table, column, ntype, store.schema.node_counts[ntype],
                                  None if own is None else own.to_arrow()).astype(np.int64))
    return _places(table, store, relations, len(ends[0]), what), *ends


def _places(table: ColumnTable, store: Store, relations: Sequence[Relation], rows: int, what: str
            ) -> np.ndarray:
    """The place of the relation of each of the rows."""
    if len(relations) == 1:
        return np.zeros(rows, np.int64)
    names, codes = table.codes("relation", f" for {what}")
    named = [store.schema.find_relation(name) for name in names]
    if other := [relation for relation in named if relation not in relations]:
        raise InputError(f"{table.path}: column 'relation' has '{other[0]}', which is not in "
                         f"task.relation: {listing(relations)}")
    return np.array([relations.index(relation) for relation in named], np.int64)[codes]


def _check_apart(table: ColumnTable, links: Links, split: np.ndarray) -> None:
    """Refuse a link in two splits: what is trained on would be asked for."""
    order = np.lexsort(links[::-1])
    order = order[split[order] >= 0]
    again = (split[order][1:] != split[order][:-1])
    for values in links:
        again &= values[order][1:] == values[order][:-1]
    if again.any():
        at = int(np.flatnonzero(again)[0])
        one, two = sorted((int(order[at]), int(order[at + 1])))
        raise InputError(f"{table.at(two)}: this link is in {quoted(WORDS[split[two]])}, and in "
                         f"{quoted(WORDS[split[one]])} in {table.at(one)}; a link is in one split "
                         "only, as what is trained on must not be asked for")
