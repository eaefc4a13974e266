"""Releases of DGL: those that are known, those between, all others."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator

import dgl
import pytest

import dgl_heta
from dgl_heta.distdgl.versions import RELEASES, homes, release
from dgl_heta.errors import InputError
from dgl_heta.system import patching

INSTALLED = dgl.__version__.partition("+")[0]


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    """Switch dgl-heta off after the test."""
    yield
    dgl_heta.disable()


def test_the_installed_release_is_one_that_is_tested() -> None:
    assert release() == INSTALLED
    assert INSTALLED in RELEASES


def test_the_build_of_a_release_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dgl, "__version__", f"{INSTALLED}+cu999")
    dgl_heta.enable()
    assert patching.applied()
    assert release() == INSTALLED


@pytest.mark.parametrize("version", ["1.1.3", "2.0.0", "2.4.1", "2.10.0+cu124", "3.0", "2.3.dev"])
def test_other_releases_are_refused_and_those_that_are_known_are_named(
        version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dgl, "__version__", version)
    with pytest.raises(InputError, match=r"dgl [\w.+]+ is installed; .* dgl 2\.1\.0 and 2\.4\.0"):
        dgl_heta.enable()
    assert not patching.applied()


def test_a_release_between_is_taken_with_a_warning(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(dgl, "__version__", "2.2.1+cu121")
    with caplog.at_level(logging.WARNING):
        dgl_heta.enable()
    assert patching.applied()
    assert release() == INSTALLED  # where names are, not what DGL calls itself
    assert caplog.text.count("dgl 2.2.1+cu121 is installed, which dgl-heta was not tested") == 1


def test_a_release_between_without_one_of_the_names_is_refused(
        monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = next(homes("load_partition_feats")).partition(":")
    monkeypatch.setattr(dgl, "__version__", "2.3.0")
    monkeypatch.delattr(importlib.import_module(module), name)
    with pytest.raises(InputError, match=r"dgl 2\.3\.0 is installed; .*2\.1\.0 and 2\.4\.0"):
        dgl_heta.enable()
    assert not patching.applied()
