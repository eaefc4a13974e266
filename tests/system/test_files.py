"""Files that are replaced: the old one or the new one, and nothing beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import HetaError
from dgl_heta.system.atomic_files import new_directory, replacing, write_atomic
from dgl_heta.system.disk import new_array, no_space
from dgl_heta.system.leftovers import clear
from tests.support.waiting import PATIENCE


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


def test_what_killed_processes_left_is_gone_after_the_next_start(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from dgl_heta.system.atomic_files import new_directory, replacing
from dgl_heta.system.leftovers import scratch_directory
place = Path(sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
with scratch_directory(place, "out") as scratch, replacing(place / "out") as file:
    (scratch / "rows").write_text("rows")
    file.write_text("half")
    with new_directory(place / "dir", overwrite=False, kind="*.json") as made:
        (made / "a").write_text("half")
        print("ready", flush=True)
        os.kill(os.getpid(), int(sys.argv[2]))
        signal.pause()
"""
    def killed(number: int) -> None:
        subprocess.run([sys.executable, "-c", program, str(tmp_path), str(number)],
                       timeout=PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    for number in (signal.SIGTERM, signal.SIGHUP):
        killed(number)
        assert not list(tmp_path.iterdir())
    killed(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 3
    with new_directory(tmp_path / "dir", overwrite=False, kind="*.json") as made:
        (made / "b").write_text("whole")
    write_atomic(tmp_path / "out", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir", "out"]


def test_names_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / f".out.tmp-00000000-{os.getpid()}-12345678").write_text("another machine's")
    with replacing(tmp_path / "out") as one:
        one.write_text("this process")
        clear(tmp_path, "out")
        assert one.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_mapped_file_has_room_on_the_disk_or_is_not_there(tmp_path: Path) -> None:
    array = new_array(tmp_path / "rows.npy", np.float32, (1000, 16))
    assert array.shape == (1000, 16)
    assert not array.any()
    assert (tmp_path / "rows.npy").stat().st_blocks * 512 >= array.nbytes
    with pytest.raises(HetaError, match=r"no space left on the disk: .*huge\.npy needs .* MB"):
        new_array(tmp_path / "huge.npy", np.float64, (1 << 50,))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


def test_a_full_disk_is_told_with_the_file_or_where_temporary_ones_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as full, open("/dev/full", "wb") as file:
        file.write(b"x")
    assert f"{tempfile.gettempdir()} (TMPDIR)" in str(no_space(full.value))
    full.value.filename = "rows.npy"
    assert str(no_space(full.value)).endswith("cannot write rows.npy")
    assert no_space(FileNotFoundError(2, "no such file")) is None


def test_a_pipe_or_a_device_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HetaError, match="it is a device or a pipe"):
        write_atomic(tmp_path / "pipe", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()
