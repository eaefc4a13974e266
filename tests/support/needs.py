"""What some tests need: DGL, GraphStorm, and hosts that can be emulated.

Where it is missing, those tests are skipped, and the reason is shown. Where HETA_TESTS_NEED
names it (`dgl,hosts`), they fail instead: scripts/test.sh says so of DGL and GraphStorm
for the environment that has them, .ci/run of hosts, so that nothing stops being tested unseen.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import pytest

from dgl_heta.launch.emulated import emulation_refused

REQUIRED = frozenset(filter(None, os.environ.get("HETA_TESTS_NEED", "").split(",")))


@cache
def lacking(what: str) -> str | None:
    """Why `dgl`, `graphstorm` or `hosts` cannot be used here, or None."""
    if what == "dgl":
        return None if importlib.util.find_spec("dgl") else "DGL is not installed"
    if what == "graphstorm":
        return None if importlib.util.find_spec("graphstorm") else (
            "GraphStorm is not installed (scripts/setup.sh does it, without its own torch)")
    if what == "hosts":
        refused = emulation_refused()
        return None if refused is None else f"hosts cannot be emulated: {refused}"
    raise ValueError(f"'{what}' is not what a test can need: dgl, graphstorm, hosts")


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    """For tests marked `needs(what)`; a conftest.py imports it."""
    for what in (what for marker in item.iter_markers("needs") for what in marker.args):
        if reason := lacking(what):
            (pytest.fail if what in REQUIRED else pytest.skip)(reason)
