"""Runs prove themselves: right programs pass and compute the same bits, wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distdgl.programs import proofs
from tests.support.programs import SHAPES, run

HERE = proofs.__name__
RIGHT = ["with_dropout", "with_autocast", "layer_by_layer", "on_block_data", "loss_inside",
         "inference", "recording_hooks", "small_batches_of_large_ones", "not_proved"]
FEW = ["case_gat_mean", "case_sage_max", "case_graph_callable", "case_multi_sum", "case_wide"]
WRONG = {
    "seeds_masked": "the input labels of node .* of 'paper' differs by .* between trainers 0 and",
    "rows_mixed": r"output differs by .*; the first that differ are rows.* from module 'layers\.",
    "by_sources": r"output differs by .*; the first that differ are rows.* from module 'layers\.0",
    "reduction_skipped": "rows of '.*' from module 'layers",
    "gradient_of_a_trainer": "the outputs agree, and the gradient of parameter 'inputs",
}


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_right_programs_pass_and_compute_the_same_bits(machines: int, trainers: int,
                                                       tmp_path: Path) -> None:
    cases = [*proofs.CASES] if (machines, trainers) == (2, 1) else FEW
    names = [f"{HERE}:{name}" for name in (*cases, *RIGHT)]
    proved, plain = (run(names, machines, trainers, tmp_path / prove, raf=True,
                         settings=[f"run.prove={prove}"]) for prove in ("auto", "off"))
    for name in names:
        for with_proof, without in zip(proved[name], plain[name]):
            assert with_proof.error is None, (name, with_proof.error)
            for key, array in without.arrays.items():
                np.testing.assert_array_equal(with_proof.arrays[key], array, f"{name} {key}")


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_wrong_programs_are_named_on_all_trainers(machines: int, trainers: int, tmp_path: Path
                                                  ) -> None:
    found = run([f"{HERE}:{name}" for name in WRONG], machines, trainers, tmp_path, raf=True,
                settings=["run.prove=auto"])
    for name, pattern in WRONG.items():
        texts = {one.error for one in found[f"{HERE}:{name}"]}
        assert len(texts) == 1, texts
        with pytest.raises(AssertionError, match=pattern):
            raise AssertionError(texts.pop())


PROGRAMS = HERE.rpartition(".")[0]
OFF = {"s1": f'{PROGRAMS}.multi_update:kind "two fields"',
       "s5": f"{PROGRAMS}.children:norm_both_subclass",
       "s9": f'{PROGRAMS}.gradients:partly "layer"'}


@pytest.mark.parametrize("repair", OFF)
def test_a_repair_that_is_switched_off_is_caught(repair: str, tmp_path: Path) -> None:
    found = run([OFF[repair]], 2, 1, tmp_path, raf=True, settings=["run.prove=auto"],
                sabotage=[repair])[OFF[repair]]
    assert all("does not compute with RAF what it computes the plain way" in str(each.error)
               for each in found)
