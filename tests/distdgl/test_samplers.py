"""Classes of samplers that scripts derive from DGL's compute under RAF what they do in plain DGL.

Samplers that are derived from none are in test_distdgl_hosts.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import differences

HERE = "tests.distdgl.programs.samplers"
DERIVED = [f'{HERE}:derived "{name}"' for name in ("Adding", "More", "Twice")]


@pytest.mark.parametrize(("machines", "trainers"), [(3, 1), (2, 2)])
def test_a_class_derived_from_dgls_sampler_is_exact(machines: int, trainers: int,
                                                    tmp_path: Path) -> None:
    assert differences(DERIVED, machines, trainers, tmp_path, settings=["run.prove=auto"]) == {}
