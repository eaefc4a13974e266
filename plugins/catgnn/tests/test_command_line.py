"""Errors on the command line: a sentence, exit status 2, and nothing half written."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.support.plugins import heta


@pytest.fixture
def run(plugin_path):
    """`dgl-heta partition` with this plugin, of edges in a directory."""
    def partition(directory, *arguments):
        return heta("partition", directory, "--method", "spring", "--out", directory / "out",
                    *arguments, path=directory, PYTHONPATH=plugin_path)

    return partition


def graph(directory, edges, nodes):
    np.save(directory / "edges.npy", edges)
    (directory / "metadata.json").write_text(json.dumps({
        "name": "mine", "nodes": {"n": {"count": nodes}},
        "edges": [{"src": "n", "etype": "r", "dst": "n", "files": ["edges.npy"]}]}))
    return directory


RING = np.stack([np.arange(50), (np.arange(50) + 1) % 50])


@pytest.mark.parametrize(("arguments", "message"), [
    (("--parts", 0), "the number of partitions is 0"),
    (("--parts", 2, "--set", "plugins.spring.balance=0.9"), r"spring\.balance: .* equal to 1"),
    (("--parts", 2, "--set", "plugins.spring.balance=inf"), r"spring\.balance: .* finite"),
    (("--parts", 2, "--hops", 2), r"--set plugins\.spring\.hops=2"),
])
def test_settings_that_cannot_be(arguments, message, run, tmp_path):
    refused(run(graph(tmp_path, RING, 50), *arguments), message, tmp_path)


def test_ids_out_of_range(run, tmp_path):
    refused(run(graph(tmp_path, RING, 49), "--parts", 2), "ids from 0 to 49; .* 49 nodes", tmp_path)


def test_a_file_that_was_cut(run, tmp_path):
    file = graph(tmp_path, RING, 50) / "edges.npy"
    file.write_bytes(file.read_bytes()[:-8])
    refused(run(tmp_path, "--parts", 2), r"cannot read .*edges\.npy", tmp_path)


def refused(done, message, directory):
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(file.name for file in directory.iterdir()) == ["edges.npy", "metadata.json"]
