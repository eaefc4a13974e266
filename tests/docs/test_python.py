"""What the page says of Python: its lines are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgl_heta.report.reading import is_run
from tests.docs.pages import ROOT, blocks
from tests.support.graphs import academic
from tests.support.needs import lacking
from tests.support.pyg import hetero_data

LINES = [code.text for code in blocks("python")
         if code.page == ROOT / "docs/getting-started.md" and "dgl_heta.train(" in code.text]


@pytest.mark.parametrize("lines", LINES, ids=["DGLGraph", "HeteroData"])
def test_a_graph_in_memory_is_trained_on_from_python(
        lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"data": hetero_data()}
    if "(graph," in lines:
        if reason := lacking("dgl"):
            pytest.skip(reason)
        from dgl_heta.partition.backends.dgl_methods import to_dgl_graph

        names["graph"] = to_dgl_graph(academic())
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, "getting-started.md", "exec"), names)  # noqa: S102
    assert is_run(names["result"].run_dir)
    assert names["result"].model.is_file()
