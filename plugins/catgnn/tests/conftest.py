"""`dgl-heta catgnn …` with the plugin as it is in the tree, whether it is installed or not."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.plugins import ROOT, heta


@pytest.fixture
def heta_catgnn(tmp_path):
    """Runs the command in `tmp_path`."""
    metadata = tmp_path / "site/dgl_heta_catgnn-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: dgl-heta-catgnn\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[dgl_heta]\ncatgnn = dgl_heta_catgnn\n")
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins/catgnn"), str(tmp_path / "site")])

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return heta("catgnn", *words, path=tmp_path, PYTHONPATH=path)

    return run
