"""What a proof could not do is named with its cause."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.proof.copies import NotProvedError
from dgl_heta.proof.module_call import Call
from dgl_heta.proof.proving import Proof


def test_a_fault_of_the_proof_itself_is_no_fault_of_the_model() -> None:
    """It says where in the proof, and what."""
    setting = SimpleNamespace(world=Comm(Traffic()))  # of which a proof needs more
    call = Call(nn.Linear(2, 2), {"args": [torch.ones(1, 2)], "kwargs": {}}, [{"paper": []}], {},
                first=0, complete=True, trained=True, drawn=False, seed=1, replicas=False)
    with pytest.raises(NotProvedError, match=r"^the proof itself failed, at proving\.py:\d+: "
                                             r"AttributeError: .*'known'"):
        Proof(setting, call).verdict()  # type: ignore[arg-type]
