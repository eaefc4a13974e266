"""Fixtures that the tests of all plugins share with those of dgl-heta."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

from tests.cli.conftest import heta  # noqa: F401
from tests.support.needs import pytest_runtest_setup  # noqa: F401
from tests.support.plugins import ROOT, distribution
from tests.support.warm_workers import warm_workers  # noqa: F401


@pytest.fixture(scope="session")
def hifuse_path(tmp_path_factory):
    """PYTHONPATH with dgl-heta-hifuse as it is in the tree, whether it is installed or not."""
    paths = [str(ROOT), str(ROOT / "plugins/hifuse")]
    if not any(entry.value == "dgl_heta_hifuse"
               for entry in importlib.metadata.entry_points(group="dgl_heta")):
        paths.append(str(distribution(tmp_path_factory.mktemp("site") / "entry", "hifuse-entry", """
            from dgl_heta_hifuse import dgl_heta_batch_sources
        """)))
    return os.pathsep.join(paths)
