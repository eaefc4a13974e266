"""What a loss may depend on, what gradients may be used for before they are averaged, and which
states may be kept: what is exact goes on, the rest is refused at its first step.
"""

from __future__ import annotations

import copy
import io
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dgl_heta.distdgl.autograd import trace as tracing
from dgl_heta.distdgl.autograd.batch_counts import BatchCounts
from dgl_heta.distdgl.autograd.dependence import Source
from dgl_heta.distdgl.autograd.trace import Trace
from tests.distdgl.programs import averages, memories, scopes
from tests.support import warm
from tests.support.dist_reference import parts, whole_graph
from tests.support.programs import SHAPES, Found, compare, dealt, differences, run
from tests.support.waiting import PATIENCE, PROMPT

PROVE = ["run.prove=auto"]
SCRIPT = Path(__file__).parents[1] / "support/scope_script.py"


def named(module: str, function: str, names: Sequence[object]) -> list[str]:
    return [f"{module}:{function} {json.dumps(name)}" for name in names]


OWN = [f"{scopes.__name__}:hooked", *named(scopes.__name__, "ahead", ["jumping"]),
       *named(scopes.__name__, "all_own", [False, True]),
       *named(scopes.__name__, "asked", ["contrast"])]
AVERAGED = [*named(averages.__name__, "without_wrapper", [*averages.RIGHT]),
            *named(averages.__name__, "unsynchronised", ["right"]),
            *named(averages.__name__, "where_there", ["alone", "no_sync"]),
            *named(averages.__name__, "beside", ["averaged"]), f"{averages.__name__}:head"]
KEPT = named(memories.__name__, "memory", [
    *([way, "paper", True] for way in memories.COMPLETE), ["set", "author", True],
    ["own", "paper", False]])
COMPLETED = named(memories.__name__, "memory", [["set", "paper", True], ["copied", "paper", True]])
"""Exact if all states are complete."""

GROUPS = {name: named(scopes.__name__, "groups", [name])[0] for name in scopes.GROUPS}
SLICED = named(scopes.__name__, "sliced", scopes.SHORT)
ASKED = named(scopes.__name__, "asked", ["all rows of the target", "masked share", "edges"])
AHEAD = named(scopes.__name__, "ahead", ["negatives by ids", "masked share", "edges"])
PARTS = {(program, way): named(averages.__name__, program, [way])[0] for program, ways in (
    ("without_wrapper", averages.WRONG), ("unsynchronised", ["norms", "clipped", "Adam"]),
    ("beside", ["dense", "sparse"])) for way in ways}
INCOMPLETE = named(memories.__name__, "memory", [
    *([way, "paper", True] for way in memories.INCOMPLETE), ["set", "paper", False]])
NORMED = f"{scopes.__name__}:normed"
UNKNOWN = named(averages.__name__, "where_there", ["copy", "counted"])
LATER = {"later", "warmed up"}
"""What is wrong from the second step on."""
SURE = {"edges of a relation", "root of a shape", "elements"}
"""Counts that are looked for in a second batch, to be sure."""
TEXTS = {"edges": "the number of edges of blocks[0]",
         "edges of a relation": "the number of edges ('author', 'writes', 'paper') of blocks[1]",
         "nodes": "the number of nodes of blocks[0]",
         "total length": "the number of input nodes",
         "another type": "the states of 'author' after layer 1",
         "rows of a table": "the rows of 'institution' that layer 1 reads",
         "negatives by ids": "what is read by ids of 'institution'"}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Found]]:
    programs = [*GROUPS.values(), *SLICED, *ASKED, *AHEAD, *PARTS.values(), *INCOMPLETE, NORMED,
                *UNKNOWN]
    return run(programs, 2, 1, tmp_path_factory.mktemp("refused"), raf=True, settings=PROVE)


def test_what_is_exact_goes_on(tmp_path: Path) -> None:
    programs = [*OWN, *AVERAGED, *KEPT]
    plain = run([*programs, *COMPLETED], 2, 1, tmp_path, raf=False)
    ours = run(programs, 2, 1, tmp_path, raf=True, settings=PROVE)
    ours |= run(COMPLETED, 2, 1, tmp_path, raf=True, settings=[*PROVE,
                                                               "train.complete_states=true"])
    assert {name: texts for name in plain if any(
        texts := [compare(*pair) for pair in zip(ours[name], plain[name])])} == {}


@pytest.mark.thorough
@pytest.mark.parametrize(("machines", "trainers"), SHAPES[1:])
def test_it_does_so_in_other_shapes(machines: int, trainers: int, tmp_path: Path) -> None:
    programs = dealt([*named(scopes.__name__, "own", [*scopes.OWN]), *OWN, *AVERAGED, *KEPT],
                     machines, trainers, 2)
    assert differences(programs, machines, trainers, tmp_path, settings=PROVE) == {}


def test_a_loss_of_rows_or_numbers_of_the_group_is_refused(refused: dict[str, list[Found]]
                                                           ) -> None:
    check_losses(refused)


def test_a_loss_of_another_type_by_functions_of_the_same_names_is_refused(tmp_path: Path) -> None:
    """Without a proof of the second step, which has it; where all of these rows are zeros here, by
    the other trainer alone."""
    program = f"{scopes.__name__}:in_turn"
    found = run([program], 2, 1, tmp_path, raf=True, settings=["run.timeout_s=4"])[program]
    assert any("the loss depends on the states of 'author' after layer 1" in str(each.error)
               for each in found)
    assert not any("step (2)" in each.arrays for each in found)


def test_a_number_of_rows_that_all_have_in_common_is_refused(tmp_path: Path) -> None:
    """Without replication, where it is the same on all trainers: in the second batch."""
    program = GROUPS["root of a shape"]
    for each in run([program], 2, 1, tmp_path, raf=True, settings=PROVE, cut="permuted")[program]:
        assert "the loss depends on the number of" in str(each.error)
        assert "of type 'author'" in str(each.error)
        assert "step (2)" not in each.arrays


@pytest.mark.thorough
@pytest.mark.parametrize(("machines", "trainers"), SHAPES[1:])
def test_and_in_other_shapes(machines: int, trainers: int, tmp_path: Path) -> None:
    check_losses(run([*GROUPS.values()], machines, trainers, tmp_path, raf=True, settings=PROVE))


def check_losses(found: dict[str, list[Found]]) -> None:
    """Each ends on all trainers with one message, which names the rows or numbers, at its first
    step."""
    for name, program in GROUPS.items():
        texts = {str(each.error) for each in found[program]}
        assert all("HetaError" in text and "the loss depends on" in text for text in texts), (
            name, texts)
        assert any(TEXTS.get(name, "") in text for text in texts), (name, texts)
        assert len(texts) == 1 or name in LATER, (name, texts)
        steps = found[program][0].arrays
        assert ("step" in steps) == (name in LATER | SURE), (name, texts)
        assert "step (2)" not in steps


def test_slices_asked_gradients_and_batches_drawn_ahead_are_looked_at_too(
        refused: dict[str, list[Found]]) -> None:
    for program in [*SLICED, *ASKED, *AHEAD]:
        for each in refused[program]:
            assert "the loss depends on" in str(each.error), program
            assert not each.arrays


def test_batch_norms_may_look_at_all_rows(refused: dict[str, list[Found]]) -> None:
    assert [each.error for each in refused[NORMED]] == [None, None]


def test_a_gradient_is_summed_over_the_trainers_before_it_is_used(
        refused: dict[str, list[Found]]) -> None:
    by = {"norms": "norm", "Adam": "Adam.step", "sparse": "SparseAdam.step"}
    for (_, way), program in PARTS.items():
        for each in refused[program]:
            text = str(each.error)
            assert text.startswith("HetaError: the gradient of a parameter"), (program, text)
            assert "before it is averaged" in text
            assert f" by {by.get(way, '')}" in text
            assert not each.arrays, program


def test_parameters_in_no_module_cannot_be_averaged_by_a_script(refused: dict[str, list[Found]]
                                                                ) -> None:
    for program in UNKNOWN:
        for each in refused[program]:
            assert "trainers have gradients of different parameters" in str(each.error)
            assert "wrap the module in DistributedDataParallel" in str(each.error)


def test_incomplete_states_are_not_kept(refused: dict[str, list[Found]]) -> None:
    for program in INCOMPLETE:
        for each in refused[program]:
            assert "the states of 'paper' after layer 1 are written to a tensor" in str(each.error)
            assert "set train.complete_states = true" in str(each.error)


@pytest.mark.needs("hosts")
def test_rows_of_a_dist_embedding_and_states_in_a_dist_tensor(tmp_path: Path) -> None:
    launched(tmp_path, "launch", "tables", "--set", "train.learnable=exact")
    texts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for told in texts:
        assert told["own"] == ""
        assert "the loss depends on rows of the DistEmbedding of 'author'" in told["rows"]
        assert "the loss depends on rows of the DistEmbedding of 'paper'" in told["all"]
        assert "the loss depends on rows of the DistEmbedding of 'author'" in told["shuffled"]
        assert "the loss depends on rows of the DistEmbedding of 'author'" in told["selected"]
        assert "the loss depends on rows of the DistEmbedding of 'author'" in told["sort"]
        for name in ("computed", "copied"):
            assert "'author' are read by ids that were computed from" in told[name]
        assert told["drawn"] == ""
        assert "the states of 'paper' after layer 1 are written to" in told["remembered"]
        assert "is used by linalg_vector_norm before it is averaged" in told["clipped"]
    assert texts[0]["rows"] == texts[1]["rows"]


def launched(directory: Path, command: str, mode: str, *options: str) -> str:
    config = parts(whole_graph(), 2, directory / "parts")
    words = [warm.python(), "-m", "dgl_heta", command, "--hosts", "2", "--part-config", config,
             "--num-omp-threads", "1", "--stop-after", PATIENCE, *options, "--", warm.with_dgl(),
             SCRIPT, "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--mode", mode,
             "--out", directory]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=2 * PATIENCE + PROMPT, errors="replace", check=False)
    assert done.returncode == (1 if mode == "kinds" else 0), done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.needs("hosts")
def test_two_runs_that_are_compared_find_each_kind(tmp_path: Path) -> None:
    """`dgl-heta prove` compares gradients of a whole step: each model's differ."""
    found = json.loads(launched(tmp_path, "prove", "kinds", "--json").splitlines()[-1])
    wrong = {each["name"].partition(".")[0] for each in found["arrays"]
             if each["kind"] == "gradient" and each["differs"]} - {"Linear"}
    assert len(wrong) == len(scopes.SHORT), wrong


@pytest.mark.thorough
@pytest.mark.needs("hosts")
def test_two_runs_agree_on_losses_of_own_rows(tmp_path: Path) -> None:
    launched(tmp_path, "prove", "own")


# --- without trainers ----------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "scaled": lambda x, ids, n: x * 1.5 - 0.25,
    "multiplied": lambda x, ids, n: x @ torch.ones(x.shape[1], 3),
    "own rows": lambda x, ids, n: x[:n],
    "shuffled": lambda x, ids, n: x.flip(0)[torch.arange(len(x) - 1, -1, -1)],
    "centred": lambda x, ids, n: x - x.mean(0),
    "own alone": lambda x, ids, n: x * (torch.arange(len(x)) < n)[:, None],
    "others set": lambda x, ids, n: set_rows(x, slice(n, None)),
    "own set": lambda x, ids, n: set_rows(x, slice(0, n)),
    "by ids": lambda x, ids, n: x + torch.isin(ids[:len(x)], torch.tensor([3, 11]))[:, None],
    "dropped out": lambda x, ids, n: torch.nn.functional.dropout(x, 0.5),
    "seen before": lambda x, ids, n: set_rows(x, slice(n, None), seen=True),
    "doubled": lambda x, ids, n: torch.cat([x, x])[:len(x)],
    "signs": lambda x, ids, n: torch.where(x > 0.5, x, x.abs()),
    "a number": lambda x, ids, n: x * (1.25 + x[:n].sigmoid().sum().item()),
    "a number of all": lambda x, ids, n: x * x.sigmoid().sum().item()}


def set_rows(x: Tensor, rows: slice, seen: bool = False) -> Tensor:
    x = x.clone()
    before = x[:] if seen else x
    x[rows] = 0.5
    return before


@given(st.lists(st.sampled_from([*OPERATIONS]), max_size=6), st.integers(1, 5))
@settings(max_examples=200)
def test_a_trace_tells_what_other_values_would_change(names: list[str], own: int) -> None:
    """As computing it again from other values does."""
    def result(x: Tensor, ids: Tensor) -> Tensor:
        torch.manual_seed(3)
        for name in names:
            x = OPERATIONS[name](x, ids, own)
        return x.square().sum()

    x, ids = torch.rand(6, 3, generator=torch.Generator().manual_seed(1)), torch.arange(6) * 2 + 1
    foreign = torch.arange(6) >= own
    rows, of_ids = Source(x, foreign, "rows", 20), Source(ids, foreign, "ids", 20, ids=True)
    whole = result(x, ids)
    other = result(rows.other(foreign), of_ids.other(foreign))
    trace = Trace()
    given_x, given_ids = x.clone(), ids.clone()
    trace.add(given_x, rows)
    trace.add(given_ids, of_ids)
    trace.start()
    try:
        traced = result(given_x, given_ids)
        with trace.aside():
            assert (trace.dependence([traced]) is None) == torch.equal(whole, other), names
    finally:
        trace.stop()
    assert torch.equal(traced, whole)


def test_what_a_trace_notes_is_not_saved_with_tensors() -> None:
    model, trace, file = torch.nn.Linear(3, 2), Trace(), io.BytesIO()
    rows = torch.rand(6, 3)
    trace.add(rows, Source(rows, torch.ones(6, dtype=torch.bool), "rows", 20))
    trace.start()
    try:
        torch.save([model.state_dict(), rows, rows[:2], rows * 2], file)
        copied = copy.deepcopy(rows)
    finally:
        trace.stop()
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded[0]["weight"], model.weight)
    assert not vars(copied)


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_trace_begins_and_ends_in_inference_mode_and_outside(begins: bool, ends: bool) -> None:
    """PyTorch restores what an inference_mode began with."""
    traces, linear, rows = [Trace() for _ in range(3)], torch.nn.Linear(3, 2), torch.rand(4, 3)
    for trace in traces:
        if not begins:
            trace.start()
        with torch.inference_mode():
            if begins:
                trace.start()
            linear(rows).relu()
            if ends:
                trace.stop()
                linear(rows).relu()
        linear(rows).detach().nonzero()
        trace.stop()
    tracing.tidy()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert linear(rows).shape == (4, 2)


def test_counts_are_found_by_what_all_trainers_have() -> None:
    counts = BatchCounts()
    counts._names, counts._types = ["nodes", "edges"], 1

    def found(numbers: Sequence[Sequence[float]], of: Sequence[tuple[int, int]]) -> str | None:
        own = [12.0, 10.0]
        return counts.counted(numbers, [[n, n, *map(float, c)] for n, c in zip(own, of)])

    large = [(130, 700), (90, 410)]
    for function in (lambda c: c, lambda c: 1 / c, np.sqrt, np.log):
        assert found([[0.5, function(c[1])] for c in large], large) == "edges"
    assert found([[12 / 130], [10 / 90]], large) == "nodes"
    assert found([[12.0], [10.0]], large) is None  # own seeds
    assert found([[130.0], [130.0]], large) is None  # the same on all
    assert found([[0.13], [0.09]], large) is None  # maybe by chance: some share of the nodes
    assert counts.wanted
    assert found([[0.155], [0.08]], [(155, 650), (80, 390)]) == "nodes"
    assert found([[3.0], [4.0]], [(3, 700), (4, 410)]) is None
    assert found([[5.0], [7.0]], [(6, 700), (9, 410)]) is None  # by chance
    assert not counts.wanted
