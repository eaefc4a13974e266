"""Files of tensors that are written a block at a time are those that safetensors reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dgl_heta.errors import HetaError
from dgl_heta.training.table_files import TensorFile

TENSORS = {
    "steps": torch.tensor(5), "none": torch.zeros(0, 3), "mask": torch.tensor([True, False]),
    "half": torch.randn(4, 3, dtype=torch.bfloat16), "turned": torch.rand(6, 2).double().t(),
    "ids": torch.arange(7)}


def test_tensors_of_any_kind_come_back(tmp_path: Path) -> None:
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in TENSORS.items()}
    layout["rows"] = (torch.float32, (5, 3))
    rows = torch.randn(5, 3)
    with TensorFile(tmp_path / "file", layout) as file:
        file.put("rows", rows[2:], 2)
        for name, tensor in TENSORS.items():
            file.put(name, tensor)
        file.put("rows", rows[:2])
    read = load_file(tmp_path / "file")
    assert read.keys() == layout.keys()
    assert all(torch.equal(read[name], t) for name, t in {**TENSORS, "rows": rows}.items())


def test_a_disk_without_room_is_told_before_rows_are_asked_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HetaError, match=r"no space left on the disk: .*file needs 4,000\.0 MB"):
        TensorFile(tmp_path / "file", {"rows": (torch.float32, (10**7, 100))})
