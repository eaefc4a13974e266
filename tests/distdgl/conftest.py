"""dgl-heta in a test's own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dgl_heta


@pytest.fixture
def off() -> Iterator[None]:
    """Switch dgl-heta off after the test."""
    yield
    dgl_heta.disable()


@pytest.fixture
def on(off: None) -> None:
    dgl_heta.enable()
