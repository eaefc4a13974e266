"""What `exclude` of DGL leaves in messages of links that are stored twice is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta.distdgl.loading.excluded_edges import stored_again
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.store import Store, write_store

LIKES, BACK = Relation("user", "likes", "item"), Relation("item", "liked-by", "user")
FOLLOWS = Relation("user", "follows", "user")
USERS, ITEMS, LINKS = 300, 200, 500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Likes with their reverses, the first tenth of them twice; follows in both directions."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("twice") / "store"
    u, i = np.arange(LINKS) % USERS, rng.permutation(LINKS) % ITEMS
    a = rng.integers(0, USERS, LINKS)
    b = (a + rng.integers(1, USERS, LINKS)) % USERS
    u, i = (np.append(side, side[:LINKS // 10]) for side in (u, i))
    write_store(GraphSource("twice", {"user": USERS, "item": ITEMS}, {
        LIKES: EdgeArrays(u, i), BACK: EdgeArrays(i, u),
        FOLLOWS: EdgeArrays(np.append(a, b), np.append(b, a))}), path, edge_ids=True)
    return Store(path)


def said(store: Store, relation: Relation, **options: Any) -> str:
    eids = {tuple(relation): torch.arange(store.schema.edge_counts[relation])}
    return "".join(stored_again(SimpleNamespace(eids=eids, **options), [relation], EdgeEnds(store),
                                store))


def test_links_that_ids_do_not_find_are_said_with_their_share(store: Store) -> None:
    alone, in_back = "100% of 'user follows user' in the opposite direction", "100% of 'user likes"
    back = {tuple(FOLLOWS): torch.arange(2 * LINKS).roll(LINKS)}
    assert alone in said(store, FOLLOWS, exclude="self")
    assert said(store, FOLLOWS, exclude="reverse_id", reverse_eids=back) == ""
    assert alone in said(store, FOLLOWS, exclude="reverse_id",
                         reverse_eids={"follows": torch.arange(2 * LINKS)})
    text = said(store, LIKES, exclude="self")
    assert in_back in text
    assert "18% of 'user likes item' in parallel edges" in text  # 100 of 550
    text = said(store, LIKES, exclude="reverse_types", reverse_etypes={"likes": "liked-by"})
    assert "18% of 'user likes item' in parallel edges" in text
    assert "18% of 'user likes item' in 'item liked-by user'" in text
    assert in_back not in text
