"""What cannot be stored, or where it cannot be, is refused by name and leaves nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.stores import LIKES, ROOT, labelled, one, python, small
from tests.support.waiting import PROMPT


class Edges:
    """Edges in chunks of any make; `before(pass, chunk)` is called before each chunk."""

    def __init__(self, src, dst, before: Callable[[int, int], None] = lambda *_: None,
                 num_edges: int | None = None) -> None:
        self.src, self.dst, self.before, self.passes = src, dst, before, 0
        self.num_edges = len(src) if num_edges is None else num_edges

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.passes += 1
        for index, start in enumerate(range(0, len(self.src), size)):
            self.before(self.passes, index)
            yield self.src[start:start + size], self.dst[start:start + size]


def refused(out: Path, source: GraphSource, *words: str, kind: type = InputError,
            **options) -> str:
    """`write_store` fails with one line that has the words, and leaves the disk as it was."""
    before = contents(out.parent)
    with pytest.raises(kind) as caught:
        write_store(source, out, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(out.parent) == before
    return str(caught.value)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b""
            for p in sorted(directory.rglob("*"))}


# Bad input: one error, nothing left


@pytest.mark.parametrize("memory_mb", [0, 64])
@pytest.mark.parametrize(("side", "ntype", "limit"), [("source", "user", 50),
                                                      ("destination", "item", 9)])
@pytest.mark.parametrize("value", [-1, 50, 2**40])
def test_an_id_out_of_range_is_named(tmp_path, side, ntype, limit, value, memory_mb):
    src, dst = np.arange(5000) % 50, np.arange(5000) % 9
    (src if side == "source" else dst)[4321] = value
    message = refused(tmp_path / "s", one(src, dst, 50, 9), "'user likes item'", "edge 4321",
                      f"{side} id {value}", f"'{ntype}' has {limit} nodes", memory_mb=memory_mb)
    assert f"0 … {limit - 1}" in message


def test_an_unsigned_id_beyond_64_bits_signed_is_named_as_it_is(tmp_path):
    src = np.array([0, 2**63 + 5], np.uint64)
    refused(tmp_path / "s", one(src, np.array([0, 1])), f"edge 1 has source id {2**63 + 5}")


@pytest.mark.parametrize(("edges", "words"), [
    (Edges(np.array([0.0, 1.0]), np.array([0, 1])), ("source ids are float64",)),
    (Edges(np.array([0, 1]), np.array([True, False])), ("destination ids are bool",)),
    (Edges(np.array([[0], [1]]), np.array([0, 1])), ("one dimension",)),
    (Edges(np.array([0, 1, 2]), np.array([0, 1])), ("3 source ids but 2 destination ids",)),
    (Edges(np.array([0, 1]), np.array([0, 1]), num_edges=3), ("3 edges announced, 2 read",)),
    (Edges(np.array([0, 1]), np.array([0, 1]), num_edges=1), ("1 edges announced, 2 read",)),
    (Edges(np.array([], int), np.array([], int)), ("0 edges", "at least 1")),
    (Edges(np.array([], int), np.array([], int), num_edges=2), ("2 edges announced, 0 read",)),
])
def test_edges_that_are_no_edges_are_refused(tmp_path, edges, words):
    source = GraphSource("g", {"user": 10, "item": 10}, {LIKES: edges})
    refused(tmp_path / "s", source, "'user likes item'", *words)


def test_edge_lists_of_different_lengths_are_refused():
    with pytest.raises(InputError, match=r"shape \(3,\).*\(2,\)"):
        EdgeArrays(np.arange(3), np.arange(2))


@pytest.mark.parametrize("memory_mb", [0, 64])
@pytest.mark.parametrize("change", ["more", "fewer", "other destinations", "out of range"])
def test_edges_that_change_while_they_are_read_are_noticed(tmp_path, memory_mb, change):
    src, dst = np.arange(5000) % 50, np.arange(5000) % 9

    def before(number: int, chunk: int) -> None:
        if number == 2 and chunk == 0:
            if change == "more":
                edges.src, edges.dst = np.tile(src, 2), np.tile(dst, 2)
            elif change == "fewer":
                edges.src, edges.dst = src[:-1], dst[:-1]
            elif change == "other destinations":
                edges.dst = np.zeros_like(dst)
            else:
                edges.dst = dst + 10**9

    edges = Edges(src, dst, before)
    refused(tmp_path / "s", GraphSource("g", {"user": 50, "item": 9}, {LIKES: edges}),
            "'user likes item' changed while they were read", kind=HetaError, memory_mb=memory_mb)


@pytest.mark.parametrize(("arrays", "words"), [
    ({"feat": np.zeros((2, 4))}, ("'feat'", "'paper'", "2 rows", "have 3")),
    ({"x": np.float32(1)[()] * np.ones(())}, ("'x'", "no rows", "have 3")),
    ({"feat": np.zeros(3)}, ("'feat'", "'paper'", "(3,)")),
    ({"feat": np.zeros((3, 4), int)}, ("'feat'", "int64", "floating point")),
    ({"feat": np.zeros((3, 0))}, ("'feat'", "(3, 0)")),
    ({"x": np.array(["a", "b", "c"])}, ("'x'", "<U1", "numbers")),
    ({"x": np.array([{}, {}, {}])}, ("'x'", "object", "numbers")),
    ({"x": np.zeros(3, complex)}, ("'x'", "complex128", "numbers")),
    ({"x": np.zeros(3, np.longdouble)}, ("'x'", "64 bits")),
    ({"feat": np.array([[1.0], [np.nan], [np.nan]])}, ("'feat'", "'paper'", "row 1")),
    ({"feat": np.array([[1, 2], [1, 2], [1, np.inf]], np.float16)}, ("'feat'", "'paper'", "row 2")),
])
def test_arrays_that_cannot_be_used_are_refused(tmp_path, arrays, words):
    refused(tmp_path / "s", small(**arrays), *words)


def test_a_bad_value_far_into_a_large_array_is_found(tmp_path):
    feat = np.zeros((200_000, 64), np.float32)  # more than one piece
    feat[190_001, 3] = -np.inf
    source = one([0], [0], 200_000, 1, node_arrays={"user": {"feat": feat}})
    refused(tmp_path / "s", source, "'feat'", "'user'", "row 190001")


@pytest.mark.parametrize(("source", "words"), [
    (labelled(label=None), ("'paper' has no array 'label'", "train_mask")),
    (labelled(train_mask=None), ("'paper' has no array 'train_mask'", "label")),
    (labelled(label=np.array([0.0, 1, 0])), ("'label'", "float64", "needs whole numbers")),
    (labelled(label=np.zeros((3, 1), int)), ("'label'", "[3, 1]")),
    (labelled(label=np.array([0, 2, 0])), ("node 1", "train_mask", "label 2", "0 to 1")),
    (labelled(val_mask=np.array([0, 0, 1], bool)), ("node 2", "val_mask", "label -1")),
    (labelled(train_mask=np.ones(3)), ("'train_mask'", "float64", "boolean")),
    (labelled(test_mask=np.ones((3, 1), bool)), ("'test_mask'", "(3, 1)")),
    (replace(labelled(), task=Task("papr", 2)), ("'papr' is not in the graph", "paper")),
    (replace(small(), node_counts={"paper": 3, "lonely": 4}), ("'lonely' has no edges",)),
    (replace(small(), node_counts={"author": 3}), ("'paper', which is not in", "author")),
    (replace(small(), node_counts={"paper": 0}), ("'paper' has 0 nodes",)),
    (replace(small(), node_arrays={"papr": {}}), ("'papr', which is not in", "paper")),
    (replace(small(), edges={}), ("no relations",)),
    (replace(small(), info={"made": Path("x")}), ("info", "JSON")),
])
def test_a_graph_that_cannot_be_trained_is_refused(tmp_path, source, words):
    refused(tmp_path / "s", source, *words)


# Failures while writing


def failing(error: BaseException, **options) -> GraphSource:
    def before(number: int, chunk: int) -> None:
        if (number, chunk) == (2, 3):
            raise error

    source = one([0], [0], 50, 9, **options)
    source.edges[LIKES] = Edges(np.arange(9000) % 50, np.arange(9000) % 9, before)
    return source


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), InputError("why")])
def test_a_source_that_fails_leaves_nothing(tmp_path, error):
    (tmp_path / "mine").write_text("kept")
    refused(tmp_path / "new" / "parents" / "s", failing(error), kind=type(error), memory_mb=0)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    error = PermissionError(13, "Permission denied", "/data/edges.bin")
    refused(tmp_path / "s", failing(error), "cannot read /data/edges.bin: Permission denied",
            kind=HetaError, memory_mb=0)


@pytest.fixture
def little_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(not shutil.which("mount"), reason="no mount command")
def test_a_disk_that_fills_up_meanwhile_is_left_as_it_was(little_disk):
    def before(number: int, chunk: int) -> None:
        if (number, chunk) == (2, 0):
            filler.write_bytes(b"x" * (os.statvfs(little_disk).f_bavail * 4096 - 8192))

    filler = little_disk / "filler"
    source = GraphSource("g", {"user": 50, "item": 9}, {
        LIKES: Edges(np.arange(20_000) % 50, np.arange(20_000) % 9, before)})
    with pytest.raises(HetaError, match=r"no space left on the disk while writing .*/s; nothing"):
        write_store(source, little_disk / "s", memory_mb=0)
    assert os.listdir(little_disk) == ["filler"]
    filler.unlink()
    source.edges[LIKES] = EdgeArrays(np.arange(20_000) % 50, np.arange(20_000) % 9)
    write_store(source, little_disk / "s", memory_mb=0)


@pytest.mark.skipif(not shutil.which("mount"), reason="no mount command")
def test_a_disk_that_is_too_small_is_told_before_writing(little_disk):
    source = one([0], [0], node_arrays={"user": {"x": np.zeros((10, 20_000))}})
    refused(little_disk / "s", source, "needs 1,600,0", "free", kind=HetaError)


def test_a_file_size_limit_is_reported_and_leaves_nothing(tmp_path):
    code = """
        import resource, sys
        import numpy as np
        from dgl_heta.errors import HetaError
        from dgl_heta.graph.source import EdgeArrays, GraphSource
        from dgl_heta.store import write_store
        ids = np.arange(200_000)
        source = GraphSource("g", {"a": 200_000}, {("a", "b", "a"): EdgeArrays(ids, ids)})
        write_store(source, sys.argv[1] + "/fits")
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        try:
            write_store(source, sys.argv[1] + "/s")
        except HetaError as error:
            print(error)
    """
    done = python(code, tmp_path)
    assert re.fullmatch(r"writing .*/s failed: File too large; nothing was kept\n", done.stdout)
    assert done.stderr == ""
    assert os.listdir(tmp_path) == ["fits"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_writer_that_is_stopped_leaves_nothing(tmp_path, number):
    code = """
        import sys, time
        import numpy as np
        from dgl_heta.graph.source import GraphSource
        from dgl_heta.store import write_store

        class Slow:
            num_edges = 2000
            def chunks(self, size):
                yield np.arange(1000), np.arange(1000)
                print("writing", flush=True)
                time.sleep(600)

        write_store(GraphSource("g", {"a": 1000}, {("a", "b", "a"): Slow()}), sys.argv[1] + "/s")
    """
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
                              cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"writing\n"
    assert len(os.listdir(tmp_path)) == 1
    writer.send_signal(number)
    assert writer.wait(PROMPT) != 0
    writer.stdout.close()
    assert os.listdir(tmp_path) == []


def test_signals_are_handled_as_before_afterwards(tmp_path):
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    write_store(small(), tmp_path / "s")
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers


# Output directories


def test_an_existing_directory_is_refused(tmp_path):
    (tmp_path / "s").mkdir()
    refused(tmp_path / "s", small(), "exists", "--overwrite")
    write_store(small(), tmp_path / "s", overwrite=True)  # it is empty


def test_overwriting_replaces_a_store_completely(tmp_path):
    write_store(academic(), tmp_path / "s")
    write_store(small(), f"{tmp_path}/s/", overwrite=True)
    assert Store(tmp_path / "s").manifest.name == "small"
    assert os.listdir(tmp_path) == ["s"]
    assert not list((tmp_path / "s").rglob("*author*"))


def test_profiles_go_with_their_store_what_a_user_keeps_there_does_not(tmp_path):
    write_store(small(), tmp_path / "s")
    (tmp_path / "s/profiles").mkdir()
    (tmp_path / "s/profiles/visits-0a-0.safetensors").touch()
    write_store(small(), tmp_path / "s", overwrite=True)
    (tmp_path / "s/thesis.tex").write_text("years of work")
    refused(tmp_path / "s", small(), "holds thesis.tex, which dgl-heta did not", overwrite=True)


def test_a_store_that_is_written_again_is_not_read_as_the_one_before(tmp_path):
    """What was read stays; what was not is refused, unless the same was written."""
    first, second = academic(), academic()
    second.node_arrays["paper"]["feat"] = second.node_arrays["paper"]["feat"] + 1
    write_store(first, tmp_path / "s")
    store = Store(tmp_path / "s")
    before = store.array("paper", "feat")
    write_store(first, tmp_path / "s", overwrite=True)
    assert store.array("paper", "train_mask").size
    write_store(second, tmp_path / "s", overwrite=True)
    np.testing.assert_array_equal(before, first.node_arrays["paper"]["feat"])
    with pytest.raises(InputError, match="was written again since it was opened"):
        store.array("paper", "label")


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "Input/output error")])
def test_the_old_store_stays_when_overwriting_fails(tmp_path, error):
    write_store(academic(), tmp_path / "s")
    refused(tmp_path / "s", failing(error), overwrite=True, memory_mb=0,
            kind=HetaError if isinstance(error, OSError) else type(error))
    Store(tmp_path / "s").verify()


@pytest.mark.parametrize("files", [
    {"thesis.tex": "years of work"}, {"manifest.json": '{"name": "a web page"}'},
    {"manifest.json": "not JSON"}, {"manifest.json": "[]"}, {"plan.json": "{}"}])
def test_a_directory_of_something_else_is_never_overwritten(tmp_path, files):
    (tmp_path / "d").mkdir()
    for name, text in files.items():
        (tmp_path / "d" / name).write_text(text)
    refused(tmp_path / "d", small(), "not written by dgl-heta", overwrite=True)


def test_files_and_links_are_never_overwritten(tmp_path):
    (tmp_path / "file").write_text("mine")
    write_store(small(), tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "link", "dangling"):
        refused(tmp_path / name, small(), "exists", name)
    refused(tmp_path / "file", small(), "not written by dgl-heta", overwrite=True)
    for name in ("link", "dangling"):
        refused(tmp_path / name, small(), "symbolic link", overwrite=True)
        assert (tmp_path / name).is_symlink()


def test_the_current_directory_is_not_pulled_away(tmp_path, monkeypatch):
    write_store(small(), tmp_path / "s")
    (tmp_path / "s" / "nodes").mkdir(exist_ok=True)
    for where, name in (("s", "."), ("s", ""), ("s/nodes", ".."), ("s/nodes", tmp_path / "s")):
        monkeypatch.chdir(tmp_path / where)
        with pytest.raises(InputError, match="exists"):
            write_store(small(), name)
        with pytest.raises(InputError, match="current directory"):
            write_store(small(), name, overwrite=True)
    monkeypatch.chdir(tmp_path)
    assert os.listdir(tmp_path) == ["s"]
    write_store(small(), "t/")
    Store("t").verify()


def test_a_directory_made_by_something_else_meanwhile_is_left(tmp_path):
    out = tmp_path / "s"
    source = one([0], [0])

    def before(number: int, chunk: int) -> None:
        if number == 2:
            write_store(academic(), out)

    source.edges[LIKES] = Edges(np.array([0]), np.array([0]), before)
    with pytest.raises(HetaError, match="meanwhile|meantime"):
        write_store(source, out)
    assert Store(out).manifest.name == "academic"
    assert os.listdir(tmp_path) == ["s"]


def test_places_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "file").write_text("mine")
    for name in ("s", "t/s"):
        refused(tmp_path / "file" / name, small(), f"cannot write {tmp_path}/file/{name}: "
                f"{tmp_path}/file is not a directory")
    refused(tmp_path / ("x" * 300), small(), "cannot write", "name too long")
    refused(tmp_path / "nul\0", small(), "cannot write", "null")
    write_store(small(), tmp_path / ("é" * 127))  # 254 bytes
    with pytest.raises(InputError, match="cannot write /proc/self/s: "):
        write_store(small(), "/proc/self/s")
    with pytest.raises(InputError, match="cannot write /sys/kernel/new/s: "):
        write_store(small(), "/sys/kernel/new/s")
