"""The fixture of tests which call in their own process what starts workers."""

from __future__ import annotations

import sys

import pytest

from tests.support import warm


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers that this process starts be copies of a warm one."""
    monkeypatch.setattr(sys, "executable", warm.python())
