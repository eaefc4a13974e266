"""Plugins that are there for the time of a test."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.support.plugins import distribution


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a throw-away plugin in this process, until the end of the test."""
    names = []

    def put(name: str, code: str, **options: str) -> None:
        distribution(tmp_path, name, code, **options)
        names.append(name.replace("-", "_"))
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in names:
        sys.modules.pop(name, None)
