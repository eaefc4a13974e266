"""Files of torch.save, read as data: arrays of NumPy in them, and files made to take long."""

from __future__ import annotations

import pickle
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_heta import read_saved
from dgl_heta.errors import InputError
from dgl_heta.graph.readers import torch_file


@pytest.mark.parametrize("protocol", [2, 4])
def test_arrays_of_numpy_in_a_saved_one_are_arrays(tmp_path: Path, protocol: int) -> None:
    arrays = {f"a{i}": array for i, array in enumerate([
        np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(2, dtype=np.int8), np.array([True, False]), np.zeros((0, 4), np.float16),
        np.arange(2).astype(">i4"), np.arange(6)[::2], np.zeros((2, 0))])}
    scalars = {"b0": np.int64(5), "b1": np.float32(0.5), "b2": np.bool_(True)}
    torch.save({**arrays, **scalars, "text": np.array(["a"]), "dates": np.datetime64("2020")},
               tmp_path / "x.pt", pickle_protocol=protocol)
    found = read_saved(tmp_path / "x.pt")
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[name], array)
    assert {name: found[name] for name in scalars} == scalars
    assert not isinstance(found["text"], np.ndarray)


LIST = [[]]
for _ in range(60):
    LIST = [LIST, LIST]
BOMBS = {
    "marks": b"(" * 100_000 + b"t" * 100_000 + b".",
    "marks in lists": b"](" * 60_000 + b"e" * 60_000 + b".",
    "steps": b"(" * 11_000 + b".",
    "references": pickle.dumps({"a": LIST}, 2)[2:-1] + b")R.",
    "shapes": b"](ctorch._utils\n_rebuild_tensor_v2\nq\x01("
              + b"K\x01" * 50_000 + b"tq\x02" + b"h\x01(h\x02K\x00h\x02h\x02tR" * 9_000 + b"e.",
    "numbers": b"](cnumpy.core.multiarray\nscalar\nq\x01cnumpy\ndtype\n"
               + b"X\x02\x00\x00\x00i8\x85Rq\x02"
               + b"X" + (100_000).to_bytes(4, "little") + b"a" * 100_000 + b"q\x03"
               + b"h\x01h\x02c_codecs\nencode\nh\x03X\x06\x00\x00\x00latin1\x86R\x86R" * 2000
               + b"e."}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_is_made_to_take_long_is_refused_in_time(
        tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time in proportion to the square of its 200 kB would be minutes."""
    if kind == "steps":
        monkeypatch.setattr(torch_file, "_MOST_STEPS", 10_000)
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w") as archive:
        archive.writestr("bomb/data.pkl", b"\x80\x02" + BOMBS[kind])
    started = time.process_time()
    with pytest.raises(InputError, match=r"cannot read \S+bomb\.pt as a file saved by"):
        read_saved(tmp_path / "bomb.pt")
    assert time.process_time() - started < 20


def test_a_tensor_that_notes_other_signs_is_not_read_without_them(tmp_path: Path) -> None:
    """`z.conj().imag` keeps the numbers of z, and that their signs are to be flipped."""
    torch.save(torch.complex(torch.ones(3), torch.ones(3)).conj().imag, tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt").tolist() == [-1, -1, -1]
    with pytest.raises(InputError, match=r"x\.pt"):
        torch_file.read_tensor(tmp_path / "x.pt")
