"""Files that are replaced: the old one or the new one, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgl_heta.errors import HetaError
from dgl_heta.system.files import replacing, write_atomic


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 60)  # as long as names of files may be
    with replacing(path) as one, replacing(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_atomic(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(HetaError, match=r"cannot write .*no/where\.txt: No such file"):
        write_atomic(tmp_path / "no" / "where.txt", "new")
