"""`dgl-heta …` with the plugin as it is in the tree, whether it is installed or not."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.plugins import ROOT, heta


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory):
    """PYTHONPATH with the plugin as one that is installed."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / "dgl_heta_catgnn-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: dgl-heta-catgnn\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[dgl_heta]\ncatgnn = dgl_heta_catgnn\n")
    return os.pathsep.join([str(ROOT), str(ROOT / "plugins/catgnn"), str(site)])


@pytest.fixture
def heta_here(tmp_path, plugin_path):
    """Runs a command of dgl-heta in `tmp_path`."""
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return heta(*words, path=tmp_path, PYTHONPATH=plugin_path)

    return run


@pytest.fixture
def heta_catgnn(heta_here):
    """Runs `dgl-heta catgnn …` in `tmp_path`."""
    return lambda *words: heta_here("catgnn", *words)
