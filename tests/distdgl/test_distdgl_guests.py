"""Guests of DistDGL scripts: model averaging on parts of DGL, merged kernels, batches ahead."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support import dist_averaging, dist_script, warm
from tests.support.dist_reference import compare_all, parts, whole_graph
from tests.support.guests import GUESTS, check_averages
from tests.support.plugins import ROOT, distribution
from tests.support.waiting import PATIENCE, PROMPT

pytestmark = pytest.mark.needs("hosts")


def launch(config: Path, script: str, path: Path, *options: str, more: tuple[str, ...] = ()
           ) -> None:
    """Run a script on two hosts, with the guests that are in `path`."""
    settings = [word for option in options for word in ("--set", option)]
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", "2", "--part-config", config,
               "--num-omp-threads", "1", "--stop-after", PATIENCE, *settings, "--", warm.with_dgl(),
               script, "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--out",
               path, *more]
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, timeout=PATIENCE + PROMPT,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]),
             "USED": str(path)})
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough  # on a meta-partition, stricter: catgnn/tests/test_model_average.py
def test_models_are_averaged_in_a_plain_script_with_unequal_numbers_of_batches(tmp_path):
    """On parts that DGL made; each trainer takes its own steps, and no trainer waits in them."""
    distribution(tmp_path, "averaging", (GUESTS / "averaging.py").read_text())
    config = parts(whole_graph(), 2, tmp_path / "parts", "metis")
    launch(config, dist_averaging.__file__, tmp_path, "train.wrapper=averaging")
    did = check_averages(tmp_path, dist_averaging.EPOCHS)
    assert [int(each["1/owned"]) for each in did] == [*dist_averaging.MINE]
    scripts = [np.load(tmp_path / f"script-{rank}.npz") for rank in range(2)]
    assert [script["steps"].tolist() for script in scripts] == [[5, 5], [2, 2]]
    for rank, script in enumerate(scripts):
        assert did[rank]["steps"] == script["steps"].sum()
        np.testing.assert_array_equal(script["parameters"], scripts[0]["parameters"])
        for epoch, parameters in enumerate(script["parameters"], 1):
            np.testing.assert_array_equal(parameters, did[rank][f"{epoch}/after"])


def test_kernels_and_batches_of_guests_serve_a_script(tmp_path):
    """With HeteroGraphConv's relations in one call, batches on a thread, embeddings exchanged."""
    for name in ("merged", "prefetching"):
        distribution(tmp_path, name, (GUESTS / f"{name}.py").read_text())
    graph, names = whole_graph(), ["graph-sum", "gat-mean", "SparseAdam", "evaluate"]
    launch(parts(graph, 2, tmp_path / "parts"), dist_script.__file__, tmp_path,
           "train.learnable=exact", "train.kernel=together", "train.batches=prefetching",
           "train.lazy_features=false", more=("--cases", ",".join(names)))
    assert compare_all(graph, names, tmp_path, 2) == []
    for rank in range(2):
        lines = [line.split() for line in (tmp_path / f"{rank}.txt").read_text().splitlines()]
        assert any(words[0] == "reduce" and int(words[1]) > 1 for words in lines)
        assert any(words[0] == "edge_softmax" and int(words[1]) > 1 for words in lines)
        assert {words[2] for words in lines if len(words) == 3} == {"prefetching"}
