"""The average of models is their weighted mean, on all workers, whoever has how many."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from dgl_heta_catgnn.averaging import ModelAverage, average_state

from dgl_heta import InputError
from dgl_heta.comm.collectives import Comm, Traffic
from tests.support.waiting import PATIENCE

MODELS = {0: [(5, 0), (11, 1)], 1: [(7, 2)], 2: []}
"""Of each worker the models: training nodes, and the number that its values follow from."""


def model(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {"weight": torch.randn(4, 3, dtype=torch.float64, generator=generator),
            "half": torch.randn(6, generator=generator).half(),
            "seen": torch.tensor(10 * number - 7), "on": torch.tensor([number == 1, False])}


def work(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=3)
    traffic = Traffic()
    world = Comm(traffic, range(3))
    average = ModelAverage(model(9))
    for weight, number in MODELS[rank]:
        average.add(model(number), weight)
    torch.save((average.over(world), dict(traffic.bytes)), f"{directory}/{rank}.pt")
    with pytest.raises(InputError, match="different sizes, which cannot be averaged: 3, 4 numb"):
        average_state({"weight": torch.ones(3 + (rank == 1))}, 1, world)
    with pytest.raises(InputError, match="no worker has a training node"):
        average_state(model(rank), 0, world)
    time.sleep(0.5)  # torch 2.2 can hang where a group is destroyed while its threads are busy
    os._exit(0)


def test_the_mean_is_weighted_by_training_nodes_over_all_models_of_all_workers(tmp_path):
    running = mp.start_processes(work, (str(tmp_path),), 3, join=False, start_method="spawn")
    end = time.monotonic() + PATIENCE
    while not running.join(1.0):
        assert time.monotonic() < end, "the workers did not end"
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    models = [(weight, model(number)) for own in MODELS.values() for weight, number in own]
    weights = [weight for weight, _ in models]
    for state, sent in results:
        want = np.average([m["weight"].numpy() for _, m in models], axis=0, weights=weights)
        np.testing.assert_allclose(state["weight"].numpy(), want, rtol=1e-14, atol=1e-15)
        half = np.average([m["half"].double().numpy() for _, m in models], axis=0, weights=weights)
        np.testing.assert_allclose(state["half"].double().numpy(), half, rtol=2e-3, atol=1e-4)
        assert state["half"].dtype == torch.float16
        assert state["seen"].item() == 13
        assert state["on"].tolist() == [True, False]
        assert sent["gradients"] == 4 * (12 * 8) // 3 + 4 * (6 * 4) // 3 + 4 * 8 // 3 + 4 * 2 // 3
        for name, value in state.items():
            assert torch.equal(value, results[0][0][name])


def test_one_worker_with_one_model_keeps_it_bit_for_bit():
    state = average_state(model(3), 7, Comm(Traffic()))
    for name, value in model(3).items():
        assert torch.equal(state[name], value)


def test_a_model_without_training_nodes_does_not_count_even_where_it_is_no_number():
    average = ModelAverage({"w": torch.zeros(2)})
    average.add({"w": torch.tensor([float("nan"), 1.0])}, 0)
    average.add({"w": torch.tensor([2.0, 3.0])}, 5)
    assert average.over(Comm(Traffic()))["w"].tolist() == [2.0, 3.0]


def test_what_cannot_be_averaged_is_an_error():
    average = ModelAverage({"w": torch.zeros(2)})
    with pytest.raises(InputError, match="differ in names or shapes"):
        average.add({"w": torch.zeros(3)}, 1)
    with pytest.raises(InputError, match="weight is nan"):
        average.add({"w": torch.zeros(2)}, float("nan"))
