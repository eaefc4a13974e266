"""Without what an extra brings, one line says what to install, and the rest works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dgl_heta.distdgl.versions import release
from dgl_heta.errors import InputError
from dgl_heta.graph.readers.graphbolt_dataset import read_graphbolt
from dgl_heta.prediction.output import arrow
from dgl_heta.report.metrics_log import log_line
from dgl_heta.report.page import write_report
from dgl_heta.system.optional import optional


@pytest.fixture
def lacks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package one that cannot be imported."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


def test_what_is_there_is_imported() -> None:
    assert optional("os.path", "a path", "none").join("a", "b") == "a/b"


def test_a_package_that_is_not_there_is_named_with_its_extra(tmp_path: Path, lacks) -> None:
    (tmp_path / "metadata.yaml").write_text("{}")
    for package, extra, use in (
            ("yaml", "readers", lambda: read_graphbolt(tmp_path)),
            ("dgl", "dgl", release),
            ("pyarrow", "parquet", arrow)):
        lacks(package)
        with pytest.raises(InputError, match=rf"needs {package}, .*install 'dgl-heta\[{extra}\]'"):
            use()


def test_a_report_without_matplotlib_says_so_and_has_its_tables(tmp_path: Path, lacks) -> None:
    lacks("matplotlib")
    (tmp_path / "metrics.jsonl").write_text(log_line(
        {"event": "epoch", "epoch": 1, "loss": 2.5, "val_acc": 0.5, "seconds": {"sample": 1.5}}))
    text = write_report(tmp_path).read_text()
    assert "dgl-heta[charts]" in text
    assert "data:image" not in text
    assert "<td>sample</td>" in text
