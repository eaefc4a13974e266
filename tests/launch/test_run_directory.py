"""A run directory holds plain files of its own: nothing is written or waited for behind a name."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.jobs import run_directory
from dgl_heta.launch.jobs.run_directory import claimed, holds_run
from dgl_heta.report.reading import read_run
from dgl_heta.system.checksums import check_file, read_signed, write_signed
from dgl_heta.training import checkpoint_files, loop
from dgl_heta.training.preemption import Position

FILES = (".lock", ".store-of-run", "metrics.jsonl", "job.json", "job.next.json", "worker-0.log",
         "started.json", "summary.json", "model.json", "model.safetensors", "report.html",
         "checkpoints/epoch-00002/rank-0.safetensors", "checkpoints/epoch-00002/complete-1.json")
DIRECTORIES = ("checkpoints", "checkpoints/epoch-00003", "averages", "seed-3")


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # its own path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


OTHERS: dict[str, Callable[[Path, Path], object]] = {
    "a link to": lambda path, other: path.symlink_to(other),
    "a link to /nowhere": lambda path, other: path.symlink_to("/nowhere"),
    "a link to /dev/zero": lambda path, other: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, other: os.mkfifo(path),
    "a socket": lambda path, other: _socket(path),
}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """What lies elsewhere, and must be as it was."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "kept").write_text("kept")
    yield place
    assert [x.name for x in place.iterdir()] == ["kept"]
    assert (place / "kept").read_text() == "kept"


@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_what_is_no_plain_file_is_named_before_anything_is_written(tmp_path, victim, name) -> None:
    directory = name in DIRECTORIES
    kinds = {**OTHERS, "a file" if directory else "a directory": (
        lambda path, other: path.write_text("") if directory else path.mkdir())}
    for number, (kind, make) in enumerate(kinds.items()):
        path = tmp_path / f"run-{number}" / name
        path.parent.mkdir(parents=True)
        make(path, victim if directory else victim / "kept")
        with pytest.raises(InputError, match=rf"^{re.escape(str(path))} is {kind}.* where a "
                           f"{'directory' if directory else 'plain file'} is expected"):
            run_directory.run_directory(path.parents[name.count("/")], "graph",
                                        resume=number % 3 == 0, shared=number % 2 == 0)
        assert os.path.lexists(path)


def test_a_lock_that_leads_to_a_file_by_a_second_name_does_not_empty_it(tmp_path, victim) -> None:
    (tmp_path / "run").mkdir()
    os.link(victim / "kept", tmp_path / "run/.lock")
    with claimed(tmp_path / "run", shared=False):
        pass


def test_a_link_that_comes_while_a_run_goes_on_is_not_written_through(tmp_path, victim) -> None:
    with claimed(tmp_path, shared=False):
        (tmp_path / "metrics.jsonl").symlink_to(victim / "kept")
        with pytest.raises(HetaError, match=r"cannot write .*metrics\.jsonl: it is a link to "):
            loop._append(tmp_path / "metrics.jsonl", {})
        checkpoint_files.new_folder(tmp_path, Position(1), 0)
        (tmp_path / "checkpoints/epoch-00002").symlink_to(victim)
        with pytest.raises(InputError, match=r"epoch-00002 is a link to .*elsewhere, where a dir"):
            checkpoint_files.new_folder(tmp_path, Position(2), 0)


def test_a_pipe_is_not_waited_for_by_who_reads_a_run(tmp_path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        os.mkfifo(tmp_path / name)
    assert read_run(tmp_path).damaged == ["metrics.jsonl", "summary.json"]
    with pytest.raises(InputError, match=r"cannot read .*: it is a pipe, no plain file"):
        read_signed(tmp_path / "summary.json", "")
    with pytest.raises(InputError, match=r"cannot read .*: it is a pipe, no plain file; the end"):
        check_file(tmp_path / "summary.json", "", "", "the end")
    with pytest.raises(InputError, match=r"cannot read .*: it is a pipe, no plain file"):
        loop._history(tmp_path / "metrics.jsonl", 1)


def test_files_of_others_and_a_link_to_the_directory_itself_are_nobodys_business(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes").symlink_to("/nowhere")
    (tmp_path / "linked").symlink_to(tmp_path / "run")
    with claimed(tmp_path / "linked", shared=False):
        assert (tmp_path / "run/.lock").is_file()
        with pytest.raises(InputError, match="another command is training in"), claimed(
                tmp_path / "run", shared=False):
            pytest.fail("two have it")
    assert [x.name for x in (tmp_path / "run").iterdir()] == ["notes"]


def test_a_second_job_of_a_scheduler_is_refused_at_its_first_worker(tmp_path, monkeypatch) -> None:
    """Both wrote metrics.jsonl, and dropped each other's checkpoints. What is started again comes
    after its worker 0 has ended, however it did."""
    monkeypatch.setenv("RANK", "0")
    run = tmp_path / "run"
    run.mkdir()
    with claimed(run, shared=True):
        with pytest.raises(InputError, match="another command is training in"), claimed(
                run, shared=True):
            pytest.fail("two have it")
        monkeypatch.setenv("RANK", "1")
        with claimed(run, shared=True):
            pass
    run.mkdir()
    monkeypatch.setenv("RANK", "0")
    with claimed(run, shared=True):
        assert [x.name for x in run.iterdir()] == [".lock"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO, errno.EACCES])
def test_a_lock_that_fails_for_another_reason_says_it(tmp_path, monkeypatch, code) -> None:
    def fail(file: object, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(HetaError, match=rf"cannot lock .*\.lock: {os.strerror(code)}"), claimed(
            tmp_path, shared=False):
        pytest.fail("it was taken")
    monkeypatch.setenv("RANK", "0")
    with claimed(tmp_path, shared=True):  # a disk of a cluster may have none
        pass


def test_where_the_lock_cannot_be_removed_the_error_of_the_run_stays(tmp_path, monkeypatch) -> None:
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(run_directory.Path, "unlink", unlink)
    with pytest.raises(HetaError, match="^of the run$"), claimed(tmp_path, shared=False):
        raise HetaError("of the run")


def test_a_directory_that_was_only_prepared_is_no_run_and_a_link_in_it_is(tmp_path) -> None:
    assert not holds_run(tmp_path)
    (tmp_path / "checkpoints").symlink_to("/nowhere")
    assert holds_run(tmp_path)


def test_a_directory_as_a_whole_that_is_a_pipe_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "run")
    with pytest.raises(InputError, match="cannot make run directory"):
        run_directory.run_directory(tmp_path / "run", "graph", resume=False, shared=False)


def test_what_was_signed_is_written_in_the_place_of_a_link(tmp_path, victim) -> None:
    (tmp_path / "job.json").symlink_to(victim / "kept")
    write_signed(tmp_path / "job.json", {"a": 1})
    assert read_signed(tmp_path / "job.json", "") == {"a": 1}
