"""The pipeline's threads: order, how far ahead, what fails, what is left."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch
from dgl_heta_hifuse.pipeline import Pipeline, PipelineSettings

from dgl_heta import Stage
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    gc.collect()
    assert threading.active_count() == before


def pipeline(depth: int = 2) -> Pipeline:
    source = Pipeline()
    source.settings = PipelineSettings(depth=depth, all_cores=True)
    return source


def stages(seen: list[tuple[str, int]], fail: Callable[[str, int], bool] = lambda stage, step: False
           ) -> list[Stage]:
    """Two stages that note what they are given; a batch is the numbers that went through."""
    def stage(name: str) -> Stage:
        def run(step: int) -> int:
            seen.append((name, step))
            if fail(name, step):
                raise ValueError(f"{name} of step {step} fails")
            return step
        return Stage(name, run)
    return [stage("sample"), stage("fetch")]


def sampled(seen: list[tuple[str, int]]) -> list[int]:
    return [step for name, step in seen if name == "sample"]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_batches_come_in_order_and_only_so_many_ahead(depth: int, steps: int) -> None:
    seen: list[tuple[str, int]] = []
    for taken, batch in enumerate(pipeline(depth).staged(steps, stages(seen), False), 1):
        assert batch == taken - 1
        assert until(lambda: len(seen) == 2 * min(taken + depth, steps), 10)  # noqa: B023
        time.sleep(0.02)  # in which one more could be made
        assert sampled(seen) == [*range(min(taken + depth, steps))]
    assert [step for name, step in seen if name == "fetch"] == [*range(steps)]


@pytest.mark.parametrize("taken", [1, 3, 6])
def test_a_pass_that_is_left_early_has_sampled_as_much_on_all_workers(taken: int) -> None:
    """Where workers agree on what they sample; here one is slow, and the others wait for it."""
    workers, depth, steps = 3, 2, 7
    meeting = threading.Barrier(workers)
    seen: list[list[int]] = [[] for _ in range(workers)]

    def work(rank: int) -> None:
        def sample(step: int) -> int:
            time.sleep(0.02 * (rank == 1))
            meeting.wait(20)
            seen[rank].append(step)
            return step

        batches = pipeline(depth).staged(steps, [Stage("sample", sample)], True)
        for _, _ in zip(range(taken), batches):
            pass
        batches.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [[*range(min(taken + depth, steps))]] * workers


@pytest.mark.parametrize("failing", ["sample", "fetch"])
def test_what_a_stage_raises_comes_in_the_place_of_its_batch_with_its_traceback(
        failing: str) -> None:
    seen: list[tuple[str, int]] = []
    batches = pipeline().staged(9, stages(seen, lambda stage, step: (stage, step) == (failing, 3)),
                                False)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match=f"{failing} of step 3 fails") as caught:
        next(batches)
    assert "run" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert next(batches, None) is None


@pytest.mark.parametrize("in_order", [False, True])
def test_an_error_in_a_batch_that_nobody_takes_is_told_where_others_wait_for_it(
        in_order: bool) -> None:
    batches = pipeline().staged(9, stages([], lambda stage, step: step == 2), in_order)
    assert next(batches) == 0
    if in_order:
        with pytest.raises(ValueError, match="sample of step 2 fails"):
            batches.close()
    else:
        batches.close()


@pytest.mark.parametrize("leave", ["close", "forget", "interrupt", "raise"])
def test_whoever_leaves_a_pass_leaves_no_thread(leave: str) -> None:
    """Also while a stage is at work, and while stages wait."""
    seen: list[tuple[str, int]] = []
    batches = pipeline(3).staged(50, stages(seen), False)
    next(batches)
    names = {thread.name for thread in threading.enumerate()}
    assert {"dgl-heta sample", "dgl-heta fetch"} <= names
    if leave == "close":
        batches.close()
    elif leave == "forget":
        del batches
    else:
        error = KeyboardInterrupt if leave == "interrupt" else RuntimeError
        with pytest.raises(error):
            batches.throw(error())
    assert not {t.name for t in threading.enumerate()} & {"dgl-heta sample", "dgl-heta fetch"}


def test_where_training_has_all_cores_nothing_runs_beside_it(monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    """But where workers agree on what they sample, which all do equally far ahead."""
    cores = set(range(torch.get_num_threads()))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: cores, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # nobody uses it
    seen: list[tuple[str, int]] = []
    for taken, batch in enumerate(Pipeline().staged(4, stages(seen), False)):
        assert batch == taken
        assert seen[-2:] == [("sample", taken), ("fetch", taken)]
        assert len(seen) == 2 * (taken + 1)
    interval = sys.getswitchinterval()
    with closing(Pipeline().staged(4, stages([]), True)) as batches:
        next(batches)
        assert sys.getswitchinterval() < interval
        assert "dgl-heta sample" in {thread.name for thread in threading.enumerate()}
    assert sys.getswitchinterval() == interval
    with monkeypatch.context() as used:
        used.setattr("torch.cuda.is_initialized", lambda: True)
        with closing(Pipeline().staged(4, stages([]), False)) as batches:
            next(batches)
            assert "dgl-heta sample" in {thread.name for thread in threading.enumerate()}
    cores.add(len(cores))  # one to spare
    with closing(Pipeline().staged(4, stages([]), False)) as batches:
        next(batches)
        assert "dgl-heta sample" in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leaves so many cores free of training."""
    def leave(cores: int) -> None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(
            torch.get_num_threads() + cores)), raising=False)
    return leave


@pytest.mark.parametrize(("cores", "in_order", "most"),
                         [(2, False, 2), (9, False, 4), (9, True, 1)])
def test_batches_are_sampled_side_by_side_and_come_in_order(
        spare: Callable[[int], None], cores: int, in_order: bool, most: int) -> None:
    """As many as cores are free, four at most; one where workers agree on them."""
    spare(cores)
    meeting = threading.Barrier(most)
    busy: list[int] = []
    seen: list[int] = []

    def sample(step: int) -> int:
        busy.append(step)
        seen.append(len(busy))
        if step < 4:  # with fewer threads this could not end
            meeting.wait(20)
        time.sleep(0.01 * (step % 3))
        busy.remove(step)
        return step

    assert [*pipeline(1).staged(16, [Stage("sample", sample)], in_order)] == [*range(16)]
    assert max(seen) == most


def test_only_the_edges_of_a_few_more_batches_are_made_further_ahead(spare: Callable[[int], None]
                                                                    ) -> None:
    spare(3)
    seen: list[tuple[str, int]] = []
    for taken, _ in enumerate(pipeline(1).staged(12, stages(seen), False), 1):
        want = {"sample": min(taken + 3, 12), "fetch": min(taken + 1, 12)}
        assert until(lambda: len(seen) == sum(want.values()), 10)  # noqa: B023
        time.sleep(0.02)  # in which one more could be made
        for name, batches in want.items():
            assert sorted(step for stage, step in seen if stage == name) == [*range(batches)]


def test_what_fails_first_is_raised_in_its_place(spare: Callable[[int], None]) -> None:
    spare(2)
    failed = threading.Event()
    sampled: list[int] = []

    def sample(step: int) -> int:
        sampled.append(step)
        if step == 0:
            failed.wait(20)
        if step == 1:
            failed.set()
            raise ValueError("step 1 fails")
        return step

    batches = pipeline(2).staged(9, [Stage("sample", sample)], False)
    assert next(batches) == 0
    with pytest.raises(ValueError, match="step 1 fails"):
        next(batches)
    assert max(sampled) <= 4


def test_workers_of_a_machine_share_its_cores(spare: Callable[[int], None],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    spare(torch.get_num_threads())  # all in use where two workers train
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with closing(Pipeline().staged(4, stages([]), False)) as batches:
        next(batches)
        assert "dgl-heta sample" not in {thread.name for thread in threading.enumerate()}


def test_a_pass_that_nobody_began_has_no_threads() -> None:
    before = threading.active_count()
    batches = pipeline().staged(3, stages([]), False)
    assert threading.active_count() == before
    batches.close()


def test_an_operator_in_a_stage_uses_one_core_and_the_others_keep_theirs() -> None:
    cores = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        inside = []

        def sample(step: int) -> int:
            torch.zeros(1 << 20).add_(1).sum()  # large enough to be divided
            inside.append(torch.get_num_threads())
            return step

        for _ in pipeline().staged(3, [Stage("sample", sample)], False):
            assert torch.get_num_threads() == 3
        assert inside == [1, 1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(cores)


def test_stages_run_beside_training_and_each_other() -> None:
    """Each waits for the two others: with one thread fewer this could not end."""
    meeting = threading.Barrier(3)

    def sample(step: int) -> int:
        if step >= 2:
            meeting.wait(20)
        return step

    def fetch(step: int) -> int:
        if 1 <= step < 9:
            meeting.wait(20)
        return step

    taken = 0
    for _ in pipeline(2).staged(10, [Stage("sample", sample), Stage("fetch", fetch)], False):
        if taken < 8:
            meeting.wait(20)
        taken += 1
    assert taken == 10
