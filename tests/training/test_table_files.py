"""Files of tensors that are written a block at a time are those that safetensors reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dgl_heta.errors import HetaError
from dgl_heta.training import table_files
from dgl_heta.training.table_files import TensorFile, mapped_tensors

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
    mapped, _ = mapped_tensors(tmp_path / "file")
    assert all(torch.equal(mapped[name], t) for name, t in read.items())
    mapped["rows"][0] = 7  # of this process alone
    assert torch.equal(load_file(tmp_path / "file")["rows"], rows)


def test_a_table_larger_than_memory_is_read(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file has holes in place of most rows: it takes no room, and is not read as a whole."""
    monkeypatch.setattr(table_files, "reserve",
                        lambda handle, size, path: os.truncate(handle, size))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count, path = 2 * memory // 256, tmp_path / "file"
    with TensorFile(path, {"rows": (torch.float32, (count, 64))}) as file:
        file.put("rows", torch.ones(3, 64), count - 3)
    assert mapped_tensors(path)[0]["rows"][[0, count - 1]].sum(1).tolist() == [0, 64]


def test_a_disk_without_room_is_told_before_rows_are_asked_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HetaError, match=r"no space left on the disk: .*file needs 4,000\.0 MB"):
        TensorFile(tmp_path / "file", {"rows": (torch.float32, (10**7, 100))})
