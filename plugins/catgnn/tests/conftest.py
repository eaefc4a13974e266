"""`dgl-heta …` with the plugin as it is in the tree, whether it is installed or not."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.plugins import heta, in_tree


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory):
    return in_tree(tmp_path_factory.mktemp("plugin") / "site", "catgnn")


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
