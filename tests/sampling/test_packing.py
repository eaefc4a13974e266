"""What is done to a batch's edges before they are copied to a GPU."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta import Relation
from dgl_heta.sampling.blocks import RelationBlock
from dgl_heta.sampling.packing import Packed
from dgl_heta.system import jit

CPU = torch.device("cpu")
DTYPES = (torch.int64, torch.int32, torch.bool, torch.float64, torch.bfloat16)
SHAPES = ((0,), (1,), (7,), (100,), (5, 3), (0, 4), (2, 3, 4))


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.booleans()),
                max_size=8))
def test_tensors_are_what_they_were(drawn: list[tuple[torch.dtype, tuple[int, ...], bool]]) -> None:
    tensors = []
    for dtype, shape, strided in drawn:
        made = torch.randint(0, 2, [2 * shape[0], *shape[1:]]).to(dtype)
        tensors.append(made[::2] if strided else made[:shape[0]])
    _, got = Packed(tensors, CPU).on(CPU)
    assert len(got) == len(tensors)
    for x, want in zip(got, tensors):
        assert x.dtype == want.dtype
        assert torch.equal(x, want)


@given(st.lists(st.integers(0, 3), max_size=30), st.booleans(), st.integers(0, 5))
def test_rows_with_edges_are_those_of_the_operators(degrees: list[int], chosen: bool, start: int
                                                    ) -> None:
    indptr = torch.tensor(np.concatenate([[0], np.cumsum(degrees)]), dtype=torch.int64)
    rows = torch.arange(len(degrees)) * 3 if chosen else None
    block = RelationBlock(Relation("a", "r", "b"), 0 if chosen else start, indptr,
                          torch.zeros(int(indptr[-1]), dtype=torch.int32), rows=rows)
    compiled = block.with_edges()
    before, jit.COMPILES = jit.COMPILES, False
    try:
        want = block.with_edges()
    finally:
        jit.COMPILES = before
    assert (compiled is block) == (want is block)
    assert torch.equal(compiled.indptr, want.indptr)
    for place in range(compiled.num_rows):
        at = torch.tensor([place])
        assert compiled.rows_at(at).tolist() == want.rows_at(at).tolist()
