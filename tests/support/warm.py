"""A Python that starts at once: commands of tests run as copies of one warm process.

Importing torch and DGL takes three seconds of a processor, more than most commands of the tests
work for. :func:`python` is the path of an interpreter that tests put where they would put
`sys.executable`:

    subprocess.run([warm.python(), "-m", "dgl_heta", "train", …])

It is a small program, the client, that sends its words, directory, environment and open files to a
server: a process that has imported what takes long, one for all tests of this process. The server
forks; the copy does what Python would do, and starts others in the same way: there `sys.executable`
is the client as well. Signals and the exit status are passed on, and whatever ends the client ends
the copy. A client on an emulated host has its copy in the namespaces of that host. What a copy
cannot be told any more, options of Python and variables that libraries read as they are loaded, is
left to the Python that there is.

Nothing of dgl-heta is imported beforehand: which of its modules a command imports, and where from,
is as it would be. Tests of how processes begin and end use `sys.executable`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
COLD = "HETA_TESTS_COLD" in os.environ or sys.platform != "linux"
IMPORTED = ("torch", "torch._dynamo", "torch.distributed", "torch.distributed.run", "numpy",
            "numba", "networkx", "pydantic.main", "pydantic.fields", "pydantic.dataclasses",
            "pluggy", "typer", "rich.console", "rich.table", "rich.progress", "safetensors.numpy",
            "safetensors.torch", "jinja2")
CHARTS = ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_svg")
DGL = ("dgl", "dgl.distributed", "pandas")
PR_SET_PDEATHSIG = 1
NAMESPACES = ("user", "net", "pid", "mnt")  # in the order in which they are entered
WORDS = 16  # bytes that say how long a request is
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FIRST_FREE = 500  # descriptors from here on are nobody's
# Read as libraries are loaded; what is set here for all is no difference.
AT_LOADING = ("PYTHON", "LD_", "MKL_", "KMP_", "GOMP_", "NUMBA_", "TORCH", "PYTORCH_", "MALLOC_",
              "DGLBACKEND", "DGL_LIBRARY_PATH", "CUDA_", "LC_", "LANG", "OPENBLAS_")
NO_DIFFERENCE = ("PYTHONPATH", "PYTHONUNBUFFERED", "TORCHELASTIC_", "TORCH_NCCL_ASYNC")

CLIENT = """#!{python} -IS
import os
import sys

PYTHON, SOCKET, USER = {python!r}, {socket!r}, {user!r}
AT_LOADING, NO_DIFFERENCE, VARIABLES = {at_loading!r}, {no_difference!r}, {variables!r}
PASSED_ON = {passed_on!r}


def can_be_handed_over(words):
    if not words or words[0].startswith("-") and (words[0] != "-m" or len(words) < 2):
        return False
    if os.stat("/proc/self/ns/user").st_ino != USER:
        return False
    names = {{n for n in {{*os.environ, *VARIABLES}} if n.startswith(AT_LOADING)
             and not n.startswith(NO_DIFFERENCE)}}
    return all(os.environ.get(n) == VARIABLES.get(n) for n in names) and not any(
        os.path.exists(os.path.join(entry, "sitecustomize.py"))
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep))


def main():
    words = sys.argv[1:]
    unbuffered = words[:1] == ["-u"]
    if unbuffered:
        words = words[1:]
    if not can_be_handed_over(words):
        os.execv(PYTHON, [PYTHON, *sys.argv[1:]])
    import array
    import json
    import signal
    import socket

    if {{"DGL_HETA_LAUNCHER", "TORCHELASTIC_RUN_ID"}} & set(os.environ):
        import ctypes

        ctypes.CDLL(None).prctl({dies}, signal.SIGKILL)  # these ask for it, when they begin
    files = [file for file in map(int, os.listdir("/proc/self/fd")) if is_open(file)]
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(SOCKET)
    except OSError:  # it has ended
        os.execv(PYTHON, [PYTHON, *sys.argv[1:]])
    request = json.dumps(dict(
        words=words, directory=os.getcwd(), environment=dict(os.environ), files=files,
        program=sys.argv[0], parent=os.getppid(),
        unbuffered=unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")),
        ignored=[n for n in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
                 if signal.getsignal(n) == signal.SIG_IGN])).encode()
    server.sendmsg([b"%{size}d" % len(request)],
                   [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
    server.sendall(request)
    for file in files:
        if file > 2:
            os.close(file)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):  # who reads them waits for the copy alone
        os.dup2(nothing, file)
    said = server.recv({size})
    status = int(said or 9)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def is_open(file):
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


main()
"""


@functools.cache
def python(*more: str) -> str:
    """The path of an interpreter whose processes are copies of a warm one.

    It ends with this process; with HETA_TESTS_COLD set, it is Python itself. `more` are modules
    that are imported beforehand as well.
    """
    if COLD:
        return sys.executable
    directory = Path(tempfile.mkdtemp(prefix="heta-warm-"))
    at = directory / "socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", str(directory), *more], cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True, stdin=subprocess.PIPE)
    atexit.register(_end, process, directory)
    assert until(lambda: at.exists() or process.poll() is not None, PATIENCE)
    assert process.poll() is None, "the process that is copied has ended"
    return str(directory / "python")


def with_dgl() -> str:
    """The same for DistDGL's scripts."""
    return python(*DGL)


def _end(process: subprocess.Popen[bytes], directory: Path) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    shutil.rmtree(directory, ignore_errors=True)


class _Request:
    """A connection to a client; `pid` of its copy, once there is one."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid = 0

    def read(self) -> tuple[dict[str, Any], list[int]] | None:
        """What the client asks for, with its files in this process; None when it has ended."""
        size = array.array("i").itemsize
        head, ancillary, _, _ = self.connection.recvmsg(WORDS, socket.CMSG_SPACE(250 * size))
        if not head:
            return None
        files: array.array[int] = array.array("i")
        for _, _, data in ancillary:
            files.frombytes(data[:len(data) - len(data) % size])
        wanted, text = int(head), b""
        while len(text) < wanted and (piece := self.connection.recv(wanted - len(text))):
            text += piece
        return json.loads(text), list(files)

    def pass_signals_on(self) -> bool:
        """Send the copy the signals of the client; returns whether that is still there."""
        numbers = self.connection.recv(64)
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return bool(numbers)

    def namespaces(self) -> list[int]:
        """Those of the client that are not of this process, as open files."""
        peer = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        client = int.from_bytes(peer[:4], sys.byteorder)
        return [os.open(f"/proc/{client}/ns/{name}", os.O_RDONLY) for name in NAMESPACES
                if os.stat(f"/proc/{client}/ns/{name}").st_ino
                != os.stat(f"/proc/self/ns/{name}").st_ino]


class Server:
    """Makes copies of its process until standard input ends."""

    def __init__(self, directory: Path, modules: Iterable[str]) -> None:
        self.libraries = _load(modules)  # files that they have opened
        _write_client(directory)
        self.waiting = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(directory / "part"))
        self.listener.listen(64)
        self.ended, writer = os.pipe()  # is written to when a copy has ended
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for source in (0, self.listener, self.ended):
            self.waiting.register(source, selectors.EVENT_READ)
        self.copies: dict[int, _Request] = {}
        gc.collect()
        gc.freeze()
        os.rename(directory / "part", directory / "socket")

    def serve(self) -> dict[str, Any] | None:
        """Make copies; returns in each what it is to do."""
        while True:
            for key, _ in self.waiting.select():
                if key.fd == 0:
                    for pid in self.copies:
                        os.kill(pid, signal.SIGKILL)
                    return None
                if key.fd == self.ended:
                    os.read(self.ended, 4096)
                elif key.fileobj is self.listener:
                    request = _Request(self.listener.accept()[0])
                    self.waiting.register(request.connection, selectors.EVENT_READ, request)
                elif (told := self._attend(key.data)) is not None:
                    return told
            self._reap()

    def _attend(self, request: _Request) -> dict[str, Any] | None:
        """See to what a client has sent, or to its end; returns in a copy what it is to do."""
        try:
            if not request.pid:
                return self._start(request)
            if request.pass_signals_on():
                return None
        except (OSError, ValueError):  # the client was killed
            pass
        self._forget(request)
        return None

    def _start(self, request: _Request) -> dict[str, Any] | None:
        """Make a copy for a request; returns in the copy what it is to do."""
        read = request.read()
        if read is None:
            raise ConnectionAbortedError
        told, files = read
        namespaces = request.namespaces()
        request.pid = os.fork()
        if not request.pid:
            signal.set_wakeup_fd(-1)
            try:
                _enter(namespaces)
                _take_over(told, files, self.libraries)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            return told
        self.copies[request.pid] = request
        for file in [*files, *namespaces]:
            os.close(file)
        return None

    def _forget(self, request: _Request) -> None:
        """The client has ended, so its copy must."""
        self.waiting.unregister(request.connection)
        request.connection.close()
        if request.pid in self.copies:
            os.kill(request.pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Tell how copies have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                request = self.copies.pop(pid)
                with contextlib.suppress(OSError):
                    request.connection.sendall(b"%16d" % status)


def _load(modules: Iterable[str]) -> set[int]:
    """Import what takes long; returns the files that libraries have opened."""
    before = _open_files()
    for name in [*IMPORTED, *CHARTS, *modules]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return _open_files() - before


def _open_files() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _write_client(directory: Path) -> None:
    program = directory / "python"
    program.write_text(CLIENT.format(
        python=sys.executable, socket=str(directory / "socket"), at_loading=AT_LOADING,
        no_difference=NO_DIFFERENCE, size=WORDS, dies=PR_SET_PDEATHSIG,
        passed_on=[int(number) for number in PASSED_ON], user=os.stat("/proc/self/ns/user").st_ino,
        variables={k: v for k, v in os.environ.items() if k.startswith(AT_LOADING)}))
    program.chmod(0o700)


def _enter(namespaces: list[int]) -> None:
    """Go on in namespaces, as a child of this process where one is of processes; this one then
    waits for it and ends as it does."""
    if not namespaces:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for file in namespaces:
        if libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), "the namespaces of the client cannot be entered")
        os.close(file)
    child = os.fork()
    if not child:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        _die_by(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _die_by(number: int) -> None:
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _take_over(told: dict[str, Any], files: list[int], keep: set[int]) -> None:
    """Make this copy what the client was started as."""
    os.setsid()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, FIRST_FREE) for file in files]
    for file in _open_files() - keep:
        if file < FIRST_FREE:
            with contextlib.suppress(OSError):
                os.close(file)
    for file, number in zip(moved, told["files"]):
        os.dup2(file, number, inheritable=True)
        os.close(file)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in told["ignored"] else (
            signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL))
    base = sys.path[1 + len(_python_path(os.environ)):]
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["directory"])
    for name, file in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = _stream(file, getattr(sys, name), told["unbuffered"])
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    words = told["words"]
    first = told["directory"] if words[0] == "-m" else str(Path(words[0]).resolve().parent)
    sys.path[:] = [first, *_python_path(os.environ), *base]
    importlib.invalidate_caches()
    sys.executable = told["program"]
    parent = told["parent"]
    os.getppid = lambda: parent  # of the client, whose end is this one's
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))


def _stream(file: int, like: io.TextIOWrapper, unbuffered: bool) -> io.TextIOWrapper:
    """A standard stream as Python would open it."""
    raw = io.FileIO(file, "w" if file else "r", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if file else io.BufferedReader(raw), encoding=like.encoding,
        errors=like.errors, line_buffering=file == 2 or raw.isatty(),
        write_through=file > 0 and unbuffered)


def _python_path(environment: Any) -> list[str]:
    return [str(Path(entry or ".").absolute())
            for entry in filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]


def become(told: dict[str, Any]) -> NoReturn:
    """Do what Python does with the words of a command, and end as it does; but do not take apart,
    for a second, what was imported."""
    words, status = told["words"], 0
    try:
        if words[0] == "-m":
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        _die_by(-status)
    os._exit(status & 255)


if __name__ == "__main__":
    at = Path(sys.argv[1])
    job = Server(at, sys.argv[2:]).serve()
    if job is not None:
        become(job)
    shutil.rmtree(at, ignore_errors=True)  # a worker of xdist ends without doing so
