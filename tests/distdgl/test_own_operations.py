"""What a script does with a block by itself: refused by name where it would be partial."""

from __future__ import annotations

from pathlib import Path

import pytest
from dgl.heterograph import DGLBlock

from dgl_heta.distdgl.blocks.block_names import ALLOWED, REFUSED
from tests.support.programs import differences, run

HERE = "tests.distdgl.programs.own_operations"


def test_every_public_name_of_a_block_is_refused_or_allowed() -> None:
    names = {name for name in dir(DGLBlock) if not name.startswith("_")}
    assert names == {*REFUSED, *ALLOWED}
    assert not REFUSED.keys() & ALLOWED


@pytest.mark.parametrize(("machines", "trainers"), [
    pytest.param(3, 1, marks=pytest.mark.thorough), (2, 2)])
def test_what_reads_edges_is_refused_and_the_rest_is_as_in_dgl(machines: int, trainers: int,
                                                                tmp_path: Path) -> None:
    programs = [f"{HERE}:refused", f"{HERE}:seen"]
    found = run(programs, machines, trainers, tmp_path, raf=True)
    assert {name: [f.error for f in trainers] for name, trainers in found.items()} == {
        name: [None] * (machines * trainers) for name in programs}


def test_one_worker_may_do_everything(tmp_path: Path) -> None:
    assert differences([f"{HERE}:alone"], 1, 1, tmp_path) == {}


def test_what_is_refused_would_be_wrong_without_a_word(tmp_path: Path) -> None:
    program = f"{HERE}:silent"
    wrong = differences([program], 2, 1, tmp_path, sabotage=["s3"])
    assert wrong[program]
    assert all("out" in text and "differs" in text for text in wrong[program])
