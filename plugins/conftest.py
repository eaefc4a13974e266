"""What the tests of all plugins share with those of dgl-heta."""

from tests.support.needs import pytest_runtest_setup  # noqa: F401
