"""Fixtures of the tests of databases."""

from __future__ import annotations

from tests.cli.conftest import heta  # noqa: F401
