"""What is proved of PyG models on several workers, and what cannot be."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import RELATIONS, academic, with_tasks
from tests.support.waiting import PATIENCE

WORKER = Path(__file__).parent / "proved_worker.py"


def test_models_are_proved_where_they_can_be_and_it_is_said_where_not(tmp_path: Path) -> None:
    source = with_tasks(academic(papers=120))
    source.edge_arrays = {RELATIONS[0]: {"edge_attr": np.ones((360, 2))}}
    write_store(source, tmp_path / "store", edge_ids=True)
    store = Store(tmp_path / "store")
    for name, targets in (("paper", ["paper"]), ("two", ["paper", "author"])):
        write_partition(store, make_plan(store.schema, targets, 2, 2), tmp_path / name,
                        edge_ids=True)
    done = subprocess.run(
        [warm.python("torch_geometric.nn"), "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", "2", str(WORKER), str(tmp_path / "paper"), str(tmp_path / "two")],
        capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        pytest.fail(done.stderr[-3000:])
    of_worker, other = (json.loads(line) for line in done.stdout.splitlines())
    assert of_worker == other
    wrong = of_worker.pop("wrong rows of two targets")
    assert "Model does not compute with RAF what it computes the plain way" in wrong
    assert "output[0] differs" in wrong
    scores = of_worker.pop("scores of links")
    assert scores[0] == 1 or "returns no rows of seeds" in scores[1]
    proved, told = of_worker.pop("arrays of edges")
    assert not proved
    assert "is given edge_attr of 'author writes paper', which one worker has" in told
    assert of_worker.pop("a number of one worker") == [
        0, "argument args[1]['numbers of the script'][0] is not the same number on all trainers"]
    assert of_worker.pop("numbers that change") == [3, None]
    assert set(map(str, of_worker.values())) == {"[1, None]"}
