"""Who is blamed when several processes fail, and in which words."""

from __future__ import annotations

import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.blame import EXIT_PEER, GRACE_S, Ended, Watched, cause, failure


def ended(status: int, at: float = 0.0, *lines: str, honest: bool = False,
          reason: str = "") -> Watched:
    process = Watched(f"process {status}", honest, ended=Ended(status, at, reason))
    process.lines.extend(lines)
    process.last_error = lines[-1] if lines else ""
    return process


LOST = "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(("first", "second"), [
    (ended(2, 9, "error: too much"), ended(-9, 0)),
    (ended(-9, 9), ended(1, 0)),
    (ended(1, 9), ended(1, 0, LOST)),
    (ended(1, 9), ended(EXIT_PEER, 0)),
    (ended(-11, 9), ended(-6, 0)),
    (ended(1, 0), ended(1, 9)),
    (ended(2, 0, "usage: script.py"), ended(1, 9)),
])
def test_the_more_certain_cause_is_blamed_and_of_equals_the_first(
        first: Watched, second: Watched) -> None:
    well = ended(0)
    for processes in ([first, second, well], [well, second, first]):
        assert cause(processes, now=10, final=True) is first


def test_who_may_have_lost_a_peer_is_blamed_only_after_a_while() -> None:
    for process in (ended(1), ended(EXIT_PEER), ended(-6), ended(1, 0, LOST, honest=True)):
        certain = process.honest
        assert cause([process], now=GRACE_S / 2, final=False) is (process if certain else None)
        assert cause([process], now=GRACE_S, final=False) is process
        assert cause([process], now=0, final=True) is process


def test_nobody_is_blamed_while_all_run_or_ended_well() -> None:
    assert cause([Watched("a"), ended(0)], now=99, final=True) is None


def test_the_error_names_how_it_ended_and_shows_what_it_wrote() -> None:
    for process, words in (
        (ended(7), "process 7 failed with exit status 7; all workers were ended"),
        (ended(-9), "process -9 was killed by signal 9 (SIGKILL); all workers were ended"),
        (ended(-40), "process -40 was killed by signal 40 (of real time); all workers were ended"),
        (ended(127, reason="no such file"),
         "process 127 could not be started: no such file; all workers were ended"),
    ):
        error = failure(process, "all workers")
        assert (str(error), error.details) == (words, "(it wrote nothing)")
    assert failure(ended(1, 0, *map(str, range(99)))).details.split() == [
        str(i) for i in range(39, 99)]


def test_sigbus_is_explained_by_files_that_were_cut() -> None:
    killed = "process -7 was killed by signal 7 (SIGBUS), "
    assert str(failure(ended(-7))) == (
        f"{killed}as when a file that it had open is cut, its disk fails, or shared memory "
        "(/dev/shm) has no room; all processes were ended")
    short = [f"{name}.npy (0 of 9 bytes)" for name in "abcde"]
    assert str(failure(ended(-7), short_files=lambda: short[:1])) == (
        f"{killed}for files that it had open were cut: a.npy (0 of 9 bytes); write the store "
        "again; all processes were ended")
    assert "c.npy (0 of 9 bytes) and 2 more; write" in str(failure(ended(-7),
                                                                   short_files=lambda: short))
    assert "a.npy" not in str(failure(ended(-9), short_files=lambda: short))


def test_wrong_input_that_a_process_tells_is_the_error_itself() -> None:
    error = failure(ended(2, 0, "Traceback of another kind", "error: setting train.lr: too much"))
    assert isinstance(error, InputError)
    assert str(error) == "setting train.lr: too much"
    assert type(failure(ended(2, 0, "error: one", "another line"))) is HetaError
