"""The kernel `merged` in DistDGL scripts: what plain DGL computes, in fp64."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAMS = "tests.distdgl.programs"


@pytest.mark.needs("dgl")
def test_scripts_compute_what_plain_dgl_does(tmp_path: Path) -> None:
    from tests.support.programs import differences

    programs = [f"{PROGRAMS}.children:{name}" for name in (
        'sage "mean"', "most", "least_merged", "own_functions", "gat", "node_ids", "arguments",
        "callable_in_order", "stack_in_order", "some_relations", "checkpointed_child")]
    assert differences(programs, 2, 1, tmp_path, settings=[
        "train.kernel=merged", "plugins.merged.few=0"]) == {}
